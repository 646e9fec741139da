"""Runs the registry's faults with late and frozen ranks."""

import late_faults
import topic

if __name__ == "__main__":
    topic.main(late_faults.FAULTS)
