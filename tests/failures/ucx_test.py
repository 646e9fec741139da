"""Runs the registry's faults of nodes that exchange data over UCX."""

import topic
import ucx_faults

if __name__ == "__main__":
    topic.main(ucx_faults.FAULTS, skip=ucx_faults.available())
