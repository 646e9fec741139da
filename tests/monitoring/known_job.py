"""programs/known.py as a job on the test's own agents.

    with Agents(2) as agents, KnownJob(agents, "a", 4, [20, 1000, 5, 0.3]) as job:
        job.phase("operations")
        ...
        job.end()
"""

import os
import subprocess

import daemons
import harness


class Agents(daemons.Daemons):
    """A coordinator and agents that serve metrics: `endpoints`, by name."""

    def __init__(self, nodes, flags=()):
        super().__init__(nodes, worker_flags=flags, coordinator_flags=flags)
        self.endpoints = {}

    def start_coordinator(self, flags):
        # The coordinator counts what it has issued itself.
        announced = self.daemon("coordinator/maypole-coordinator",
                                flags + ["--metrics=127.0.0.1:0", "--frozen_nodes=0"])
        self.endpoints["coordinator"] = announced["metrics"]
        return announced

    def start_worker(self, node, flags):
        self.endpoints["node%d" % node] = self.daemon(
            "worker/maypole-worker", flags + ["--network=127.0.0.1", "--metrics=127.0.0.1:0"])["metrics"]


class KnownJob:
    """programs/known.py on running agents, with consecutive ranks on each node."""

    def __init__(self, agents, job, np, args, more=None):
        self.dir, self.job, self.np = agents.dir, job, np
        local = np // len(agents.sockets)
        self.ranks = []
        for r in range(np):
            env = {"MAYPOLE_RANK": str(r), "MAYPOLE_SIZE": str(np), "MAYPOLE_LOCAL_RANK": str(r % local),
                   "MAYPOLE_LOCAL_SIZE": str(local), "MAYPOLE_JOB": job, "MAYPOLE_TOKEN": "t",
                   "MAYPOLE_AGENT": agents.sockets[r // local], "MAYPOLE_TEST_DIR": self.dir,
                   "MAYPOLE_TEST_JOB": job}
            env.update(more or {})
            self.ranks.append(subprocess.Popen(
                [harness.PYTHON, os.path.join(harness.ROOT, "tests/programs/known.py")] + [str(a) for a in args],
                env=harness.environment(env), stdin=subprocess.DEVNULL))

    def __enter__(self):
        return self

    def await_file(self, name):
        path = os.path.join(self.dir, name)

        def there():
            if any(r.poll() is not None for r in self.ranks) and not os.path.exists(path):
                raise AssertionError("a rank ended before " + name)
            return os.path.exists(path)
        harness.wait_until(there, 60, name)
        with open(path) as f:
            return f.read()

    def phase(self, name):
        self.begin(name)
        for r in range(self.np):
            self.await_file("%s.%s.%d" % (name, self.job, r))

    def begin(self, name):
        with open(os.path.join(self.dir, "phase.%s.%s" % (name, self.job)), "w"):
            pass

    def waited(self):
        """The time that each rank has spent in the late operation."""
        return [float(self.await_file("waited.%s.%d" % (self.job, r))) for r in range(self.np)]

    def end(self):
        self.begin("end")
        return [r.wait(60) for r in self.ranks]

    def __exit__(self, *_):
        for r in self.ranks:
            if r.poll() is None:
                r.kill()
            r.wait()
