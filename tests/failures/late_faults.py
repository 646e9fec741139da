"""Ranks that are late or frozen."""

import os
import re
import signal
import time

import harness
from faults import Fault, Outcome, check_seconds, expect
from rank_faults import place_of, told_by

CHECK = 1.0  # s, of the stall inspector in these tests


def line_about(scene, job, since, pattern, seconds):
    """Waits for a line of the coordinator about this job; returns when it came, and the line."""
    def found():
        for line in scene.daemons.log().splitlines():
            if "job=%s " % job.job in line and re.search(pattern, line):
                return line
        return None

    line = harness.wait_until(found, seconds, "a line of the coordinator: " + pattern)
    return time.monotonic() - since, line


def late(scene, layout, fault):
    """A late rank (stopped or busy) is reported; nothing else happens."""
    how, = fault.args
    with scene.job(layout, "doomed.py", ["compute", 0], env={"HOROVOD_STALL_CHECK_TIME_SECONDS": str(CHECK)}) as job:
        job.await_ready()
        since = time.monotonic()
        if how == "stopped":
            os.kill(job.pid(0), signal.SIGSTOP)
        pattern = r"event=late_ranks.*rank 0 \(.*has not submitted: allreduce .*awaited"
        seconds, line = line_about(scene, job, since, pattern, 15)
        if how == "stopped":
            os.kill(job.pid(0), signal.SIGCONT)
        job.touch("go")
        for r in range(job.np):
            record = job.await_record(r)
            if (record["text"], record["value"]) != (None, job.np * (job.np + 1) / 2):
                raise AssertionError("rank %d: %s" % (r, record))
        if job.statuses() != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
        pause = scene.check_witness(since)
    said = re.search(r'reason="(.*?)"(?: |$)', line)
    outcome = Outcome({"the log": seconds}, {"the log": said.group(1).replace("\\'", "'"), "all ranks": None}, pause)
    check_seconds(fault, outcome)
    return outcome


def stall_shutdown(scene, layout, fault):
    """The user has set a bound for late ranks."""
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": str(CHECK), "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    with scene.job(layout, "doomed.py", ["compute", 0], env=env) as job:
        job.await_ready()
        since = time.monotonic()
        seconds, records = told_by(job, range(1, job.np), since)
        job.touch("go")
        records[0] = job.await_record(0)
        job.touch("over")
        for r, record in records.items():
            expect(r"the stall shutdown time \(2 s\) has passed: rank 0 \(.*\) has not submitted: allreduce 'awaited' .*", record["text"], "rank %d" % r)
        pause = scene.check_witness(since)
    outcome = Outcome({"others": seconds}, {"others": records[1]["text"]}, pause)
    check_seconds(fault, outcome)
    return outcome


def frozen(scene, layout, fault):
    """A rank is stopped while its operation is under way: after a bound it counts as lost."""
    victim = 1
    with scene.job(layout, "doomed.py", ["wait", victim]) as job:
        job.await_ready()
        os.kill(job.pid(victim), signal.SIGSTOP)
        since = time.monotonic()
        job.touch("go")  # the last rank submits the operation
        others = [r for r in range(job.np) if r != victim]
        seconds, records = told_by(job, others, since)
        job.touch("over")
        for r, record in records.items():
            for name in ("text", "later"):
                expect(r".*rank %d \(.*node n%d.*\).* has not moved for 2 s while allreduce 'awaited' was under way.*" % (
                    victim, place_of(victim, layout)), record[name], "rank %d" % r)
        if [job.status(r) for r in others] != [0] * len(others):
            raise AssertionError("statuses of %s" % others)
        # The victim cannot continue either: its operation has failed, too.
        os.kill(job.pid(victim), signal.SIGCONT)
        mine = job.await_record(victim)["text"]
        if mine is None:
            raise AssertionError("the frozen rank was told nothing")
        pause = scene.check_witness(since)
    outcome = Outcome({"others": seconds}, {"others": records[others[0]]["text"], "the rank, once continued": mine}, pause)
    check_seconds(fault, outcome)
    return outcome


def of(name, what, sees, run, bound, args=(), **kwargs):
    return Fault(name=name, topic="late", what=what, sees=sees, layouts=("1x4", "2x2"), run=run, bound=bound, args=args,
                 **kwargs)


FAULTS = [
    of("late-busy", "a rank computes, the others wait (stall check after 1 s)", "no error: the coordinator's log "
       "names the rank and what it holds up", late, 5.0, ("busy",), times=10),
    of("late-stopped", "a rank is stopped (SIGSTOP), the others wait (stall check after 1 s)",
       "no error: the coordinator's log names the rank and what it holds up", late, 5.0, ("stopped",), times=10),
    of("late-shutdown", "a rank is late and HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=2", "all: an error that names it; "
       "the job ends", stall_shutdown, 6.0, times=10),
    of("frozen", "a rank is stopped (SIGSTOP) while its operation is under way (--frozen_timeout=2s)",
       "all others: an error that names it; the job ends", frozen, 8.0, worker_flags=("--frozen_timeout=2s",), times=10),
]
