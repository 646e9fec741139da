"""All faults, by topic, in the order of the page."""

import daemon_faults
import deadlock_faults
import disk_faults
import late_faults
import leaving_faults
import memory_faults
import mismatch_faults
import rank_faults
import ucx_faults
import wire_faults

TOPICS = {
    "ranks": rank_faults.FAULTS,
    "late": late_faults.FAULTS,
    "deadlock": deadlock_faults.FAULTS,
    "daemons": daemon_faults.FAULTS,
    "wire": wire_faults.FAULTS,
    "ucx": ucx_faults.FAULTS,
    "memory": memory_faults.FAULTS,
    "disk": disk_faults.FAULTS,
    "leaving": leaving_faults.FAULTS,
    "mismatches": mismatch_faults.FAULTS,
}
ALL = [fault for faults in TOPICS.values() for fault in faults]
BY_NAME = {fault.name: fault for fault in ALL}
