"""Runs the registry's mismatches: ranks disagree, in every way."""

import mismatch_faults
import topic

if __name__ == "__main__":
    topic.main(mismatch_faults.FAULTS)
