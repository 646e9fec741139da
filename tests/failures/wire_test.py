"""Runs the registry's faults in which the wire between nodes is cut."""

import namespaces
import topic
import wire_faults

if __name__ == "__main__":
    topic.main(wire_faults.FAULTS, skip=namespaces.available())
