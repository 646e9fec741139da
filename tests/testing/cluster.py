"""Daemons as an operator starts them: a coordinator, agents, and ranks by hand.

    with cluster.Cluster() as c:
        address = c.coordinator("--secret_file=" + c.secret())
        agents = [c.agent(n, address, "--secret_file=" + c.secret()) for n in (0, 1)]
        ranks = [c.rank(r, 2, agents[r], node=r, nodes=2) for r in (0, 1)]
        c.check_ok(ranks)
        c.record(0)["sum"]

The end of the `with` ends all processes, by process id. `c.log(name)` has what
each process has written to stderr.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import harness


class Cluster:
    def __init__(self, root=harness.ROOT, within="/tmp"):
        self.root = root
        self.dir = tempfile.mkdtemp(prefix="mpc", dir=within)
        os.chmod(self.dir, 0o777)
        self.processes = {}

    def __enter__(self):
        self._old = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(self, kind, value, trace):
        for process in reversed(list(self.processes.values())):
            harness.kill_tree(process)
        if kind is not None:
            for name in self.processes:
                sys.stderr.write("--- %s\n%s\n" % (name, self.log(name)[-4000:]))
        shutil.rmtree(self.dir, ignore_errors=True)
        signal.signal(signal.SIGTERM, self._old)
        return False

    def path(self, name):
        return os.path.join(self.dir, name)

    def log(self, name):
        with open(self.path(name + ".err"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def secret(self, text="only those who know this may join", name="secret"):
        """Writes the secret to a file; returns its path."""
        with open(self.path(name), "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(text + "\n")
        return f.name

    def start(self, name, argv, env=None, **kwargs):
        with open(self.path(name + ".err"), "wb") as err:
            process = subprocess.Popen(
                argv, env=env or harness.environment(root=self.root), stdin=subprocess.DEVNULL,
                stdout=err, stderr=err, cwd=self.dir, **kwargs)
        self.processes[name] = process
        return process

    def daemon(self, name, program, *flags, prefix=(), **kwargs):
        """Starts it and returns its announcement as {key: value}."""
        read, write = os.pipe()
        try:
            self.start(name, list(prefix) + [os.path.join(self.root, program), "--announce_fd=%d" % write]
                       + list(flags), pass_fds=[write], **kwargs)
        finally:
            os.close(write)
        with os.fdopen(read) as announced:
            line = announced.readline()
        if not line:
            raise AssertionError("%s does not start: %s" % (name, self.log(name)))
        return dict(word.split("=", 1) for word in line.split())

    def coordinator(self, *flags, name="coordinator", **kwargs):
        """Starts the coordinator; returns its address."""
        return self.daemon(name, "coordinator/maypole-coordinator", "--metrics=", *flags, **kwargs)["listen"]

    def agent(self, node, coordinator, *flags, name=None, **kwargs):
        """Starts an agent; returns its socket."""
        return self.daemon(name or "agent%d" % node, "worker/maypole-worker",
                           "--socket=" + self.path("agent%d.sock" % node), "--coordinator=" + coordinator,
                           "--node=n%d" % node, "--metrics=", *flags, **kwargs)["socket"]

    def rank(self, rank, size, agent, node=0, nodes=1, local_rank=0, job="job", token="token",
             program="secure.py", args=(), env=None, prefix=()):
        extra = {"MAYPOLE_RANK": rank, "MAYPOLE_SIZE": size, "MAYPOLE_LOCAL_RANK": local_rank,
                 "MAYPOLE_LOCAL_SIZE": size // nodes, "MAYPOLE_CROSS_RANK": node, "MAYPOLE_CROSS_SIZE": nodes,
                 "MAYPOLE_JOB": job, "MAYPOLE_TOKEN": token, "MAYPOLE_AGENT": agent, "MAYPOLE_TEST_DIR": self.dir,
                 "TMPDIR": self.dir}
        extra.update(env or {})
        path = os.path.join(self.root, "tests/programs", program)
        return self.start("%s.rank%d" % (job, rank), list(prefix) + [harness.PYTHON, path] + [str(a) for a in args],
                          env=harness.environment({k: str(v) for k, v in extra.items()}, self.root))

    def ranks(self, agents, job="job", **kwargs):
        """One rank on each of the agents' nodes."""
        n = len(agents)
        return [self.rank(r, n, agents[r], node=r, nodes=n, job=job, **kwargs) for r in range(n)]

    def check_ok(self, processes, seconds=90):
        for process in processes:
            status = process.wait(timeout=seconds)
            if status != 0:
                raise AssertionError("a process ended with status %d: %s" % (status, process.args))

    def record(self, rank, directory="."):
        with open(self.path(os.path.join(directory, "rank.%d.json" % rank))) as f:
            return json.load(f)
