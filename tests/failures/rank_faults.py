"""A rank ends, or stops, in the middle of a job."""

import os
import signal
import time

import harness
from faults import Fault, Outcome, check_seconds, expect

PERSON = r"rank %d \((?:pid \d+, host \S+, )?node n%d(?:, host \S+)?(?:, pid \d+)?\)"


def place_of(r, layout):
    return r // int(layout.split("x")[1])


def told_by(job, ranks, since):
    """Waits for the ranks' errors: (seconds of the slowest rank, records)."""
    records = {r: job.await_record(r) for r in ranks}
    return max(rec["seen"] - since for rec in records.values()), records


def run(scene, layout, fault):
    place, way, victim = fault.args
    with scene.job(layout, "doomed.py", [place, victim, way]) as job:
        job.await_ready()
        if place == "submit":
            time.sleep(0.05)
        since = time.monotonic()
        os.kill(job.pid(victim), getattr(signal, way, signal.SIGUSR1))
        late = (victim + 1) % job.np if place == "wait" else None
        others = [r for r in range(job.np) if r not in (victim, late)]
        if not hasattr(signal, way):
            harness.wait_until(lambda: os.path.exists(os.path.join(job.dir, "rank.%d.json" % victim)), 10,
                               "the victim to end itself")
            since = job.record(victim)["ended"]
        seconds, records = told_by(job, others, since)
        if late is not None:  # it sees the error in its next call
            job.touch("go")
            records[late] = job.await_record(late)
        job.touch("over")
        outcome = Outcome({"others": seconds}, {"others": records[others[0]]["text"]})
        check(job, layout, fault, records)
        outcome.pause = scene.check_witness(since)
    check_seconds(fault, outcome)
    return outcome


LOST = r"(died|was lost): (?!it has shut down).*"
LEFT = r"(was lost: it )?has shut down( with \d+ operations? pending.*|; .*)"
HOW = {
    "exception": (LEFT, 1), "exit0": (LEFT, 0), "exit3": (LEFT, 3), "shutdown": (LEFT, 0),
    "SIGSEGV": (LOST, -signal.SIGSEGV), "SIGKILL": (LOST, -signal.SIGKILL),
}


def check(job, layout, fault, records):
    place, way, victim = fault.args
    who = r"rank %d \(.*node n%d.*\)" % (victim, place_of(victim, layout))
    how, status = HOW[way]
    operation = r"allreduce '(grad\.\d+|over)'" if place == "submit" else "allreduce 'awaited'"
    for r, record in records.items():
        # The text may come from the executor, the coordinator or this rank itself.
        for name, text in ((operation, record["text"]), ("allreduce 'later'", record["later"])):
            expect(r"%s.*: .*(%s|rank %d) %s|%s has shut down; %s needs it" % (name, who, victim, how, who, name), text,
                   "rank %d" % r)
    for r in range(job.np):
        want = status if r == victim else 0
        got = job.status(r)
        if got != want:
            raise AssertionError("rank %d ended with status %s, expected %s" % (r, got, want))


def stop(scene, layout, fault):
    """SIGSTOP, and after some time SIGCONT: the rank is only late."""
    place, victim, rest = fault.args
    with scene.job(layout, "doomed.py", [place, victim]) as job:
        job.await_ready()
        since = time.monotonic()
        os.kill(job.pid(victim), signal.SIGSTOP)
        time.sleep(rest)
        told = [r for r in range(job.np) if os.path.exists(os.path.join(job.dir, "rank.%d.json" % r))]
        if told:
            raise AssertionError("ranks %s did not wait: %s" % (told, [job.record(r) for r in told]))
        resumed = time.monotonic()
        job.touch("go")
        os.kill(job.pid(victim), signal.SIGCONT)
        records = [job.await_record(r) for r in range(job.np)]
        want = job.np if place == "submit" else job.np * (job.np + 1) / 2
        for r, record in enumerate(records):
            if (record["text"], record["later"], record["value"]) != (None, None, want):
                raise AssertionError("rank %d: %s" % (r, record))
        if job.statuses() != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
        outcome = Outcome({"all go on": max(rec["seen"] for rec in records) - resumed}, {"all go on": None})
        outcome.pause = scene.check_witness(since)
    check_seconds(fault, outcome)
    return outcome


PLACES = {"compute": "while it computes", "submit": "in the middle of submitting", "wait": "while it waits"}
WAYS = {
    "exception": "a rank raises an exception", "exit0": "a rank exits with status 0",
    "exit3": "a rank exits with status 3", "SIGSEGV": "a rank gets SIGSEGV", "SIGKILL": "a rank gets SIGKILL",
}

FAULTS = [
    Fault(name="rank-%s-%s" % (way.lower(), place), topic="ranks", what="%s %s" % (WAYS[way], PLACES[place]),
          sees="all others: an error that names it; the job ends", layouts=("1x4", "2x2"), run=run, bound=1.0,
          long_layouts=() if way in ("exit3", "SIGKILL") else ("1x4",), args=(place, way, victim))
    for victim, (way, place) in enumerate((w, p) for w in WAYS for p in PLACES)
    for victim in [victim % 4]
] + [
    Fault(name="rank-shutdown-compute", topic="ranks", what="a rank calls shutdown() while others need it",
          sees="operations that need it: an error that names it", layouts=("1x4", "2x2"), run=run, bound=1.0,
          args=("compute", "shutdown", 2)),
] + [
    Fault(name="rank-sigstop-%s" % place, topic="ranks",
          what="a rank is stopped (SIGSTOP) for 1.5 s %s, then continued" % PLACES[place],
          sees="no error: the others wait, then all continue", layouts=("1x4", "2x2"), run=stop, bound=2.0,
          long_layouts=("1x4",), args=(place, victim, 1.5))
    for victim, place in enumerate(PLACES)
]
