"""Ranks leave, call init() again, fork, are interrupted, end with operations pending."""

import os
import signal
import time

import harness
from faults import Fault, Outcome, check_seconds, expect
from rank_faults import place_of, told_by


def who(r, layout):
    return r"rank %d \(.*node n%d.*\)" % (r, place_of(r, layout))


def again(scene, layout, fault):
    rounds, = fault.args
    start = time.monotonic()
    with scene.job(layout, "again.py", [rounds]) as job:
        if job.statuses(120) != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
        records = job.records()
        pause = scene.check_witness(start)
    for r, record in enumerate(records):
        first, last = record["left"][1], record["left"][-1]
        if last[:2] != first[:2] or last[2] > first[2] + 64:
            raise AssertionError("rank %d has more and more descriptors, threads, MiB: %s ... %s" % (r, first, last))
    # The first round waits for all ranks' programs to start.
    outcome = Outcome({"slowest round": max(max(record["seconds"][1:]) for record in records)}, {"all": None}, pause)
    check_seconds(fault, outcome)
    return outcome


def forks(scene, layout, fault):
    victim, way, status, told = fault.args
    start = time.monotonic()
    with scene.job(layout, "forks.py", [victim, way]) as job:
        if job.statuses() != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
        records = job.records()
        pause = scene.check_witness(start)
    want = float(sum(range(job.np)))
    for r, record in enumerate(records):
        if record["text"] is not None or set(record["totals"]) != {want}:
            raise AssertionError("rank %d: %s" % (r, record))
    children = records[victim]["children"]
    if children != [[status, told]] * 2:
        raise AssertionError("the children ended with %s, expected %s" % (children, [status, told]))
    return Outcome({}, {"all": None, "the child": told}, pause)


def dies_before_its_child(scene, layout, fault):
    victim, = fault.args
    with scene.job(layout, "forks.py", [victim, "outlives"]) as job:
        job.await_file("child")
        time.sleep(0.1)
        child = harness.descendants(job.pid(victim))
        since = time.monotonic()
        os.kill(job.pid(victim), signal.SIGKILL)
        others = [r for r in range(job.np) if r != victim]
        seconds, records = told_by(job, others, since)
        if len(child) != 1 or not harness.alive(child[0]):
            raise AssertionError("the rank's child should have outlived the others' error")
        job.touch("over")
        for r, record in records.items():
            expect("allreduce '.*': .*%s (died|was lost): .*" % who(victim, layout), record["text"], "rank %d" % r)
        pause = scene.check_witness(since)
        harness.wait_until(lambda: not harness.alive(child[0]), 10, "the rank's child to end")
    outcome = Outcome({"others": seconds}, {"others": records[others[0]]["text"]}, pause)
    check_seconds(fault, outcome)
    return outcome


def forgets(scene, layout, fault):
    victim, how, told = fault.args
    with scene.job(layout, "forgets.py", [victim, how]) as job:
        status = job.status(victim)
        ended = time.monotonic()
        since = job.record(victim)["ended"]
        if status != 0:
            raise AssertionError("the victim ended with %s" % status)
        others = [r for r in range(job.np) if r != victim]
        seconds, records = told_by(job, others, since)
        for r, record in records.items():
            expect("allreduce 'awaited': .*%s %s" % (who(victim, layout), told), record["text"], "rank %d" % r)
        pause = scene.check_witness(since)
    outcome = Outcome({"others": seconds, "its own end": ended - since}, {"others": records[others[0]]["text"]}, pause)
    check_seconds(fault, outcome)
    return outcome


def interrupted(scene, layout, fault):
    victim, = fault.args
    with scene.job(layout, "interrupted.py", [victim]) as job:
        job.await_ready()
        time.sleep(0.05)
        since = time.monotonic()
        os.kill(job.pid(victim), signal.SIGINT)
        mine = job.await_record(victim)
        others = [r for r in range(job.np - 1) if r != victim]
        seconds, records = told_by(job, others, since)
        expect("KeyboardInterrupt", mine["text"], "the victim")
        for r, record in records.items():
            expect("allreduce 'awaited': .*%s (was lost: it )?has shut down with 1 operations? pending.*" % who(victim, layout),
                   record["text"], "rank %d" % r)
        if job.status(victim) not in (130, 1, -2):
            raise AssertionError("the victim ended with %s" % job.status(victim))
        pause = scene.check_witness(since)
    outcome = Outcome({"victim": mine["seen"] - since, "others": seconds}, {
        "victim": "KeyboardInterrupt", "others": records[others[0]]["text"]}, pause)
    check_seconds(fault, outcome)
    return outcome


def interrupted_launcher(scene, layout, fault):
    """maypolerun on the scene's coordinator gets Ctrl-C."""
    del fault
    with scene.launch(layout, "interrupted.py", [0]) as job:
        for r in range(job.np):
            job.await_file("ready.%d" % r)
        family = harness.descendants(job.process.pid)
        since = time.monotonic()
        os.kill(job.process.pid, signal.SIGINT)
        status = job.wait(10)
        ended = time.monotonic()
        left = [p for p in family if harness.alive(p)]
        if status != 130 or left:
            raise AssertionError("maypolerun ended with %s, %s live" % (status, left))
        pause = scene.check_witness(since)
    outcome = Outcome({"all over": ended - since}, {"maypolerun": "got signal 2 (Interrupt): stopping the job"}, pause)
    return outcome


FORKED = "this process was forked from a rank and is not part of the job; use Maypole in the rank itself"


def leaving(name, what, sees, run, args, bound=1.0, layouts=("1x4", "2x2"), times=20):
    return Fault(long_layouts=("1x4",), name=name, topic="leaving", what=what, sees=sees, layouts=layouts, run=run, bound=bound, args=args,
                 times=times)


FAULTS = [
    leaving("init-again", "init, work, shutdown, 100 times", "no error; no round leaves anything behind", again, (100,),
            layouts=("1x2", "2x2"), times=5),
    leaving("fork-exit", "a rank's forked child exits (as DataLoader workers do)", "nothing", forks, (1, "exit", 0, None)),
    leaving("fork-kill", "a rank's forked child gets SIGKILL", "nothing", forks, (1, "kill", -9, None)),
    leaving("fork-use", "a rank's forked child submits an operation", "the child: an error that says what it is; "
            "the ranks: nothing", forks, (1, "use", 0, FORKED)),
    leaving("fork-init", "a rank's forked child calls init()", "the child: an error that says what it is; "
            "the ranks: nothing", forks, (1, "init", 0, FORKED)),
    leaving("fork-outlives", "a rank gets SIGKILL while its forked child lives on", "all others: as for SIGKILL",
            dies_before_its_child, (1,)),
    leaving("pending-at-end", "a rank's program ends with 3 operations pending", "all others: an error that names it",
            forgets, (2, "end", "(was lost: it )?has shut down with 3 operations pending")),
    leaving("pending-at-exit", "a rank calls os._exit(0) with 3 operations pending", "all others: an error that names it",
            forgets, (2, "exit", "(died|was lost): .*")),
    leaving("ctrl-c-rank", "a rank that waits gets Ctrl-C (SIGINT)", "it: KeyboardInterrupt; all others: an error that "
            "names it", interrupted, (1,)),
    leaving("ctrl-c-maypolerun", "maypolerun gets Ctrl-C (SIGINT)", "no process is left; exit status 130",
            interrupted_launcher, (), bound=2.0),
]
