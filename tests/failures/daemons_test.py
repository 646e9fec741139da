"""Daemons are killed: the registry's faults of daemons."""

import daemon_faults
import topic

if __name__ == "__main__":
    topic.main(daemon_faults.FAULTS)
