"""Runs the registry's faults in which a daemon is killed."""

import daemon_faults
import topic

if __name__ == "__main__":
    topic.main(daemon_faults.FAULTS)
