"""Runs the registry's faults in which ranks leave, fork or end with operations pending."""

import leaving_faults
import topic

if __name__ == "__main__":
    topic.main(leaving_faults.FAULTS)
