"""Runs the registry's certain deadlocks."""

import deadlock_faults
import topic

if __name__ == "__main__":
    topic.main(deadlock_faults.FAULTS)
