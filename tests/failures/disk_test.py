"""Runs the registry's faults with a full disk."""

import os

import disk_faults
import topic

if __name__ == "__main__":
    topic.main(disk_faults.FAULTS, skip=None if os.geteuid() == 0 else "making a small disk needs root")
