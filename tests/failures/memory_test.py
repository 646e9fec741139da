"""Memory limits: the registry's faults of memory."""

import limits
import memory_faults
import topic

if __name__ == "__main__":
    topic.main(memory_faults.FAULTS, skip=limits.available())
