"""Late and frozen ranks: the registry's faults of those."""

import late_faults
import topic

if __name__ == "__main__":
    topic.main(late_faults.FAULTS)
