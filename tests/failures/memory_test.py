"""Runs the registry's faults with memory limits."""

import limits
import memory_faults
import topic

if __name__ == "__main__":
    topic.main(memory_faults.FAULTS, skip=limits.available())
