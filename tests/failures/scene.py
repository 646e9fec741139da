"""Where faults happen: daemons, a job that a fault hits, and another that it must not affect.

    with scene.Scene(nodes=2) as s:
        with s.job("2x2", "doomed.py", ["wait", 1]) as job:
            job.await_ready()
            since = time.monotonic()
            os.kill(job.pid(1), signal.SIGKILL)
            ...
            s.check_witness(since)

Both jobs run on the same coordinator and the same agents. The ranks are child
processes of the test, so it sees the exit status of each. All processes are
ended by process id, even when a test fails.
"""

import array
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import daemons
import harness

PROGRAMS = os.path.join(harness.ROOT, "tests", "failures", "programs")
# How long the other job may pause on a machine that is busy with a fault; the
# actual pause is measured.
MOST_PAUSE = 2.0

_numbers = itertools.count(1)


def read_layout(layout):
    """(nodes, ranks on each) of "2x3"."""
    nodes, local = layout.split("x")
    return int(nodes), int(local)


class Ranks:
    """The ranks of one job on given agents, each a child process of the test.

    wrap(node), wrap_rank(rank): words before the command. python: the program is a file in
    programs/; otherwise it is a command.
    """

    def __init__(self, sockets, layout, program, args=(), env=None, wrap=lambda node: (), wrap_rank=lambda r: (),
                 python=True):
        self.nodes, self.local = read_layout(layout)
        self.np = self.nodes * self.local
        self.dir = tempfile.mkdtemp(prefix="mpf", dir="/tmp")
        self.job = "%d.%d" % (os.getpid(), next(_numbers))
        self.processes = []
        try:
            for r in range(self.np):
                before = list(wrap(r // self.local)) + list(wrap_rank(r))
                if python:
                    before += [harness.PYTHON, os.path.join(PROGRAMS, program)]
                else:
                    before += [program]
                self.processes.append(self._start(r, sockets[r // self.local], before + [str(a) for a in args], env or {}))
        except BaseException:
            self.stop()
            raise

    def environment(self, r, socket):
        return {"MAYPOLE_RANK": str(r), "MAYPOLE_SIZE": str(self.np), "MAYPOLE_LOCAL_RANK": str(r % self.local),
                "MAYPOLE_LOCAL_SIZE": str(self.local), "MAYPOLE_CROSS_RANK": str(r // self.local),
                "MAYPOLE_CROSS_SIZE": str(self.nodes), "MAYPOLE_JOB": self.job, "MAYPOLE_TOKEN": "t",
                "MAYPOLE_AGENT": socket, "MAYPOLE_TEST_DIR": self.dir}

    def _start(self, r, socket, command, env):
        out = [open(os.path.join(self.dir, "%s.%d" % (name, r)), "wb") for name in ("stdout", "stderr")]
        try:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out[0], stderr=out[1], cwd=self.dir,
                                    env=harness.environment(dict(self.environment(r, socket), **env)))
        finally:
            for f in out:
                f.close()

    def modified(self, name):
        """When a file was last written, on the clock of time.monotonic()."""
        ago = time.time() - os.stat(os.path.join(self.dir, name)).st_mtime
        return time.monotonic() - ago

    # As in harness.Job: reading what ranks write with rank.py, and signalling them.
    await_file, touch = harness.Job.await_file, harness.Job.touch
    record, records = harness.Job.record, harness.Job.records

    @property
    def process(self):
        """For await_file: a process that has failed, if any, because it will write nothing more."""
        return next((p for p in self.processes if p.poll() not in (None, 0)), self.processes[0])

    def await_record(self, r, seconds=30):
        """Waits for the rank's record, even if another rank has ended."""
        path = os.path.join(self.dir, "rank.%d.json" % r)
        harness.wait_until(lambda: os.path.exists(path), seconds, "the record of rank %d of %d" % (r, self.np))
        return self.record(r)

    def await_ready(self):
        for r in range(self.np):
            self.await_file("ready.%d" % r)

    def pid(self, r):
        return self.processes[r].pid

    def status(self, r, seconds=30):
        """Waits for the rank's end: its exit status, or minus the signal."""
        return self.processes[r].wait(timeout=seconds)

    def statuses(self, seconds=30):
        return [self.status(r, seconds) for r in range(self.np)]

    def text(self, name, r):
        with open(os.path.join(self.dir, "%s.%d" % (name, r)), errors="replace") as f:
            return f.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            for r in range(self.np):
                sys.stderr.write("--- rank %d: status %s\n%s%s\n" % (
                    r, self.processes[r].poll(), self.text("stdout", r)[-1500:], self.text("stderr", r)[-3000:]))
        self.stop()
        return False

    def stop(self):
        for p in self.processes:
            harness.kill_tree(p)  # also one that is stopped
        shutil.rmtree(self.dir, ignore_errors=True)


class Witness(Ranks):
    """The job that a fault must not affect: its ranks take steps until the test ends it."""

    def __init__(self, sockets, layout, **kwargs):
        super().__init__(sockets, layout, "witness.py", **kwargs)

    def steps(self, r):
        """When each step of the rank has ended (time.monotonic())."""
        out = array.array("d")
        with open(os.path.join(self.dir, "steps.%d" % r), "rb") as f:
            data = f.read()
        out.frombytes(data[:len(data) // 8 * 8])
        return out

    def await_step(self, since, seconds=20):
        """Waits until every rank has ended a step later than `since`."""
        for r in range(self.np):
            def stepped():
                if self.processes[r].poll() is not None:
                    raise AssertionError("the other job has ended: " + self.text("stderr", r))
                path = os.path.join(self.dir, "steps.%d" % r)
                if not os.path.exists(path):
                    return False
                times = self.steps(r)
                return len(times) > 0 and times[-1] > since
            harness.wait_until(stepped, seconds, "a step of the other job's rank %d" % r)

    def pause(self, since):
        """The longest time without a step from `since` until now."""
        now = time.monotonic()
        longest = 0.0
        for r in range(self.np):
            times = [since] + [t for t in self.steps(r) if t > since] + [now]
            longest = max(longest, max(b - a for a, b in zip(times, times[1:])))
        return longest

    def finish(self):
        """Ends the job normally; raises if a rank failed."""
        self.touch("end")
        statuses = self.statuses()
        if statuses != [0] * self.np:
            raise AssertionError("the other job has noticed: statuses %s\n%s" % (
                statuses, "".join(self.text("stderr", r) for r in range(self.np))))


class Scene:
    """Daemons for `nodes` nodes and a witness on them."""

    def __init__(self, nodes, worker_flags=(), coordinator_flags=(), witness=True, log=None, env=None):
        """log: the file to which the daemons write; None: a file of their own. env: what they get besides."""
        self.nodes = nodes
        self.daemons = daemons.Daemons(nodes, worker_flags, coordinator_flags, log, env)
        self._wants_witness = witness
        self.witness = None
        self.orphans = []  # executors whose agent a test has killed

    def __enter__(self):
        self.daemons.__enter__()
        try:
            if self._wants_witness:
                self.witness = self.start_witness()
                self.witness.await_step(0)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def start_witness(self):
        return Witness(self.daemons.sockets, "1x2" if self.nodes == 1 else "%dx1" % self.nodes)

    def job(self, layout, program, args=(), **kwargs):
        before = self._executors()
        job = Ranks(self.daemons.sockets, layout, program, args, **kwargs)
        job.executors_before = before
        return job

    def launch(self, layout, program, args=(), prefix=(), launcher_args=(), **kwargs):
        """A harness.Job: maypolerun with this scene's coordinator and its own agents."""
        nodes, local = read_layout(layout)
        return harness.Job(
            np=nodes * local, nodes=nodes, command=[harness.PYTHON, os.path.join(PROGRAMS, program)] +
            [str(a) for a in args], prefix=prefix, launcher_args=[
                "--coordinator", self.daemons.listen, "--secret-file", os.path.join(self.daemons.dir, "secret")] +
            list(launcher_args), **kwargs)

    def _executors(self):
        """Process ids of all executors, by agent."""
        table = harness.processes()
        return [pid for worker in self.daemons.workers
                for pid, (parent, argv) in table.items() if parent == worker and "--executor" in argv]

    def executors(self, job):
        """Process ids of the executors of a job that is ready, by node."""
        return [pid for pid in self._executors() if pid not in job.executors_before]

    def check_witness(self, since):
        """Checks that the other job continues and has not paused for long; returns the longest pause."""
        self.witness.await_step(time.monotonic())
        pause = self.witness.pause(since)
        if pause > MOST_PAUSE:
            raise AssertionError("the other job stood still for %.1f s" % pause)
        return pause

    def __exit__(self, kind, value, trace):
        try:
            if self.witness is not None:
                if kind is None:
                    self.witness.finish()
        finally:
            if self.witness is not None:
                self.witness.__exit__(kind, value, trace)
            executors = self._executors() + self.orphans
            self.daemons.__exit__(kind, value, trace)
            for pid in executors:  # left by an agent that was killed
                if harness.alive(pid):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except OSError:
                        pass
        return False
