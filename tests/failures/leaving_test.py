"""Ranks leave, fork, forget: the registry's faults of leaving."""

import leaving_faults
import topic

if __name__ == "__main__":
    topic.main(leaving_faults.FAULTS)
