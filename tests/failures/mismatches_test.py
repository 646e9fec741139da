"""Ranks disagree, in every way: the registry's faults of mismatches."""

import mismatch_faults
import topic

if __name__ == "__main__":
    topic.main(mismatch_faults.FAULTS)
