"""A daemon is killed: which ranks get an error, and which jobs continue."""

import os
import signal
import time

import harness
from faults import Fault, Outcome, check_seconds, expect
from rank_faults import place_of, told_by


def kill_executor(scene, layout, fault):
    with scene.job(layout, "doomed.py", ["compute", 0]) as job:
        job.await_ready()
        node = job.nodes - 1
        executor = scene.executors(job)[node]
        since = time.monotonic()
        os.kill(executor, signal.SIGKILL)
        others = list(range(1, job.np))
        seconds, records = {}, {}
        for name, ranks in (("same node", [r for r in others if place_of(r, layout) == node]),
                            ("other nodes", [r for r in others if place_of(r, layout) != node])):
            if ranks:
                seconds[name], told = told_by(job, ranks, since)
                records.update(told)
        job.touch("go")  # the computing rank sees the error in its next call
        records[0] = job.await_record(0)
        job.touch("over")
        outcome = Outcome(seconds)
        for r, record in records.items():
            there = place_of(r, layout) == node
            expect("allreduce 'awaited': .*executor.*(%s|node n%d).*" % (
                scene.daemons.sockets[node] if there else "n%d" % node, node), record["text"], "rank %d" % r)
            if r != 0:
                outcome.texts["same node" if there else "other nodes"] = record["text"]
        outcome.pause = scene.check_witness(since)
    check_seconds(fault, outcome)
    # The agent starts another one for the next job.
    with scene.job(layout, "doomed.py", ["compute", 0]) as job:
        job.touch("go")
        if job.statuses() != [0] * job.np:
            raise AssertionError("the next job ended with %s" % job.statuses())
    return outcome


def kill_agent(scene, layout, fault):
    with scene.job(layout, "doomed.py", ["submit", 0]) as job:
        job.await_ready()
        executors = scene.executors(job)
        scene.orphans += executors
        since = time.monotonic()
        os.kill(scene.daemons.workers[-1], signal.SIGKILL)
        time.sleep(1)
        pause = scene.check_witness(since)
        # A job that starts now gets an error at once.
        with scene.job(layout, "doomed.py", ["submit", 0]) as late:
            told = late.np - 1
            if late.status(told) != 1:
                raise AssertionError("a job without an agent ended with %s" % late.status(told))
            text = late.text("stderr", told).strip().splitlines()[-1].partition(": ")[2]
            expect(r"no agent listens at %s \(.*\); start maypole-worker on this node, or the ranks with maypolerun" %
                   scene.daemons.sockets[-1], text, "a rank that came later")
        job.touch("go")
        for r in range(job.np):
            record = job.await_record(r)
            if record["text"] is not None or record["later"] is not None:
                raise AssertionError("rank %d of a running job was told: %s" % (r, record))
        if job.statuses() != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
    # Nothing is left behind: the executor ends with its last rank.
    harness.wait_until(lambda: not harness.alive(executors[-1]), 20, "the executor without an agent to end")
    return Outcome({}, {"running jobs": None, "a rank that comes later": text}, pause)


def start_coordinator_again(scene):
    """At its address, after a kill."""
    daemons = scene.daemons
    daemons.processes[0].wait()
    daemons.start_coordinator(
        ["--secret_file=" + os.path.join(daemons.dir, "secret"), "--metrics=", "--listen=" + daemons.listen] +
        daemons.coordinator_flags)
    daemons.processes[0] = daemons.processes.pop()  # in the place of the one before


def start_agent_again(scene, node):
    """At its socket, after a kill."""
    daemons = scene.daemons
    daemons.processes[1 + node].wait()
    daemons.start_worker(node, daemons.flags_of_worker(node))
    daemons.processes[1 + node] = daemons.processes.pop()  # in the place of the one before


def restart_coordinator(scene, layout, fault):
    with scene.job(layout, "doomed.py", ["compute", 0]) as job:
        job.await_ready()
        since = time.monotonic()
        os.kill(scene.daemons.coordinator, signal.SIGKILL)
        time.sleep(0.3)
        start_coordinator_again(scene)
        job.touch("go")
        for r in range(job.np):
            record = job.await_record(r)
            if record["text"] is not None or record["later"] is not None:
                raise AssertionError("rank %d of a running job was told: %s" % (r, record))
        if job.statuses() != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
        seconds = time.monotonic() - since
    outcome = Outcome({"all go on": seconds}, {"all": None}, scene.check_witness(since))
    check_seconds(fault, outcome)
    return outcome


def kill_coordinator(scene, layout, fault):
    with scene.job(layout, "doomed.py", ["compute", 0]) as job:
        job.await_ready()
        since = time.monotonic()
        os.kill(scene.daemons.coordinator, signal.SIGKILL)
        seconds, records = told_by(job, range(1, job.np), since)
        job.touch("go")
        records[0] = job.await_record(0)
        job.touch("over")
        for r, record in records.items():
            expect(r"allreduce 'awaited': .*coordinator %s lost: .*" % scene.daemons.listen, record["text"],
                   "rank %d" % r)
    outcome = Outcome({"all": seconds}, {"all": records[1]["text"]})
    check_seconds(fault, outcome)
    return outcome


FAULTS = [
    Fault(name="executor-sigkill", topic="daemons", what="the executor of a job gets SIGKILL",
          sees="all ranks of that job: an error that names it; the agent starts another one for the next job",
          layouts=("1x4", "2x2"), run=kill_executor, bound=5.0),
    Fault(name="agent-sigkill", topic="daemons", what="the agent of a node (maypole-worker) gets SIGKILL",
          sees="running jobs continue; later ranks get an error that no agent listens", layouts=("1x4", "2x2"),
          run=kill_agent, bound=10.0, own_daemons=True, long_layouts=("1x4",), times=5),
    Fault(name="coordinator-sigkill", topic="daemons",
          what="the coordinator gets SIGKILL and does not come back (--coordinator_timeout=2s)",
          sees="jobs of several nodes: an error that names its address, when ranks have waited for it for that long; "
          "jobs of one node continue", layouts=("2x2",), run=kill_coordinator, bound=10.0, own_daemons=True,
          witness=False, worker_flags=("--coordinator_timeout=2s",)),
    Fault(name="coordinator-restarted", topic="daemons",
          what="the coordinator gets SIGKILL, and is started again at its address after 0.3 s",
          sees="no error: all wait, then continue", layouts=("1x4", "2x2"), run=restart_coordinator, bound=10.0,
          own_daemons=True),
]
