"""The wire between two nodes is cut, permanently or for a time."""

import time

from faults import Fault, Outcome, check_seconds, expect
from rank_faults import place_of, told_by


def cut(scene, layout, fault):
    """A permanent cut: both sides get an error."""
    ends, data, place = fault.args
    with scene.job(layout, "doomed.py", [place, 0]) as job:
        job.await_ready()
        if place == "submit":
            time.sleep(0.1)
        since = time.monotonic()
        for node in ends:
            scene.wire.cut(node, data)
        job.touch("cut")
        waiting = [r for r in range(job.np) if (place, r) != ("compute", 0)]
        try:
            seconds, texts = {}, {}
            for node in (0, 1):
                ranks = [r for r in waiting if place_of(r, layout) == node]
                told, records = told_by(job, ranks, since)
                seconds["node n%d" % node] = told
                texts["node n%d" % node] = records[ranks[0]]["text"]
                for r in ranks:
                    expect(TOLD[data][node], records[r]["text"], "rank %d" % r)
            pause = scene.check_witness(since)
        finally:
            scene.wire.heal()
            job.touch("over")
    outcome = Outcome(seconds, texts, pause)
    check_seconds(fault, outcome)
    # The next job runs without any cleaning up.
    with scene.job(layout, "doomed.py", ["compute", 0]) as job:
        job.touch("go")
        if job.statuses(60) != [0] * job.np:
            raise AssertionError("the next job ended with %s" % job.statuses())
    return outcome


TOLD = {
    # The other side does not know whether the coordinator has died or the wire: it waits for it, until the network between the
    # executors fails, too.
    False: (r"allreduce '.*': .*node n1 .*", r"allreduce '.*': .*(coordinator 10\.213\.77\.1:\d+ lost|network between nodes).*"),
    True: (r"allreduce '.*': .*network between nodes.* to node n.*", r"(allreduce|broadcast) '.*': .*network between nodes.* to node n.*"),
}


def heal(scene, layout, fault):
    """The wire is cut and, unless it is one of two, restored after `rest` seconds: the job continues with right sums."""
    ends, data, rest = fault.args
    with scene.job(layout, "doomed.py", ["submit", 0]) as job:
        job.await_ready()
        time.sleep(0.1)
        since = time.monotonic()
        try:
            for node in ends:
                scene.wire.cut(node, data)
            if rest is not None:
                time.sleep(rest)
                scene.wire.heal()
            begin = time.monotonic()
            job.touch("go")  # the training ends in a later step
            records = [job.await_record(r, 60) for r in range(job.np)]
        finally:
            scene.wire.heal()
        for r, record in enumerate(records):
            if (record["text"], record["later"]) != (None, None):
                raise AssertionError("rank %d: %s" % (r, record))
        if job.statuses() != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
        pause = scene.check_witness(since)
    outcome = Outcome({"all go on": max(r["seen"] for r in records) - begin}, {"all go on": None}, pause)
    check_seconds(fault, outcome)
    return outcome


def fault(name, what, sees, run, bound, args, long=False):
    scene = "wire" if not args[1] else "data wire" if args[2] is not None else "two wires"
    return Fault(worker_flags=("--network_timeout=3s",) if args[1] else (), name="wire-" + name, topic="wire", what=what, sees=sees,
                 layouts=("2x2",), run=run, bound=bound, args=args, long=long, times=5, scene=scene)


GOES_ON = "no error: all wait, then continue"
ENDS = "both sides: an error that names the lost node or coordinator; the job ends"
DATA_ENDS = "both sides: an error that names the connection; the job ends"

FAULTS = [
    fault("cut", "the network between two nodes is cut permanently", ENDS, cut, 25.0, ((0, 1), False, "submit")),
    fault("cut-from-0", "packets from the coordinator's node are lost permanently", ENDS, cut, 25.0, ((0,), False, "submit"), True),
    fault("cut-from-1", "packets from the other node are lost permanently", ENDS, cut, 25.0, ((1,), False, "submit"), True),
    fault("healed", "the network between two nodes is cut for 1 s", GOES_ON, heal, 10.0, ((0, 1), False, 1.0)),
    fault("healed-late", "the network between two nodes is cut for 3.5 s: the coordinator's stream breaks and is resumed",
          GOES_ON, heal, 15.0, ((0, 1), False, 3.5), True),
    fault("healed-from-1", "packets from the other node are lost for 3.5 s", GOES_ON, heal, 15.0, ((1,), False, 3.5), True),
    fault("data-cut", "only the data network is cut, permanently (--network_timeout=3s); the coordinator can still be reached",
          DATA_ENDS, cut, 15.0, ((0, 1), True, "submit")),
    fault("data-cut-idle", "the same while no data is under way: the ranks wait for one that computes", DATA_ENDS, cut, 15.0,
          ((0, 1), True, "compute")),
    fault("data-cut-sent", "the same; a node has sent all its data and waits for nothing, the other waits for that data",
          DATA_ENDS, cut, 15.0, ((0, 1), True, "send")),
    fault("data-healed", "only the data network is cut for 1 s (--network_timeout=3s)", GOES_ON, heal, 10.0, ((0, 1), True, 1.0)),
    fault("one-cut", "the first of two data networks is cut, permanently (--network=A,B --network_timeout=3s)", GOES_ON, heal, 15.0,
          ((0, 1), True, None)),
    fault("one-cut-from-1", "packets from the other node are lost on the first of two data networks, permanently", GOES_ON, heal, 15.0,
          ((1,), True, None), True),
]
