"""Runs the registry's faults of ranks: a rank ends in every way, at every place."""

import rank_faults
import topic

if __name__ == "__main__":
    topic.main(rank_faults.FAULTS)
