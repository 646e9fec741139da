"""A certain deadlock of ranks is reported at once."""

import time

from faults import Fault, Outcome, check_seconds, expect


def crossed(scene, layout, fault):
    way, pattern = fault.args
    start = time.monotonic()
    with scene.job(layout, "crossed.py", [way]) as job:
        if job.statuses() != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
        records = job.records()
        pause = scene.check_witness(start)
    for r, record in enumerate(records):
        expect(pattern, record["text"], "rank %d" % r)
    since = records[-1]["since"]  # the last to come
    outcome = Outcome({"all": max(record["seen"] for record in records) - since}, {"all": records[0]["text"]}, pause)
    check_seconds(fault, outcome)
    return outcome


def of(name, what, sees, run, bound, args=(), **kwargs):
    return Fault(name=name, topic="deadlock", what=what, sees=sees, layouts=("1x4", "2x2"), run=run, bound=bound, args=args,
                 **kwargs)


WAITS = (r"^deadlock: every rank waits for another: ranks 0,1,2 wait for %s, which rank 3 has not "
         r"submitted; rank 3 waits for %s, which (not all of )?"
         r"ranks 0,1,2 have (not )?submitted; ")

FAULTS = [
    of("deadlock-kinds", "allreduce 'x' on some ranks, allgather 'x' on another", "all: an error that names both; "
       "the job ends", crossed, 3.0, ("kinds", WAITS % ("allreduce 'x'", "allgather 'x'") +
                                      r".*; 'x' is the same name in different collectives")),
    of("deadlock-names", "ranks wait for 'a' and 'b' in different orders", "all: an error that names both; "
       "the job ends", crossed, 3.0, ("names", WAITS % ("allreduce 'a'", "allreduce 'b'") + r".* in different orders")),
    of("deadlock-thread", "the same, when a second thread of each rank has used Maypole and has ended", "all: an error that names "
       "both; the job ends", crossed, 3.0, ("thread", WAITS % ("allreduce 'a'", "allreduce 'b'") + r".* in different orders"),
       long_layouts=("1x4",)),
]
