"""The wire between nodes is cut: the registry's faults of the network."""

import namespaces
import topic
import wire_faults

if __name__ == "__main__":
    topic.main(wire_faults.FAULTS, skip=namespaces.available())
