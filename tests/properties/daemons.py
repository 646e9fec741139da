"""A coordinator and one agent per node, on loopback, with the test's flags.

    with daemons.Daemons(nodes=2, worker_flags=["--chunk_bytes=4096"]) as d:
        subprocess.run([program, "--agents=" + d.agents])

All started processes are ended by process id, even when the test fails. One set
of daemons serves many jobs, one after the other.
"""

import os
import shutil
import subprocess
import sys
import tempfile

import harness


class Daemons:
    def __init__(self, nodes, worker_flags=(), coordinator_flags=(), log=None, env=None):
        self.dir = tempfile.mkdtemp(prefix="mpd", dir="/tmp")  # short: sockets
        self.nodes = nodes
        self.worker_flags = list(worker_flags)
        self.coordinator_flags = list(coordinator_flags)
        self.env = env
        self.processes = []
        self._log = open(log or os.path.join(self.dir, "log"), "wb")

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _start(self):
        secret = os.path.join(self.dir, "secret")
        with open(secret, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write("of this test\n")
        announced = self.start_coordinator(["--secret_file=" + secret, "--metrics="] + self.coordinator_flags)
        self.listen, self.metrics = announced["listen"], announced.get("metrics")
        self.sockets = [os.path.join(self.dir, "agent%d" % n) for n in range(self.nodes)]
        for n in range(self.nodes):
            self.start_worker(n, self.flags_of_worker(n))

    def flags_of_worker(self, node):
        return ["--secret_file=" + os.path.join(self.dir, "secret"), "--coordinator=" + self.listen,
                "--socket=" + self.sockets[node], "--node=n%d" % node, "--metrics="] + self.worker_flags

    # For those who start them elsewhere.
    def start_coordinator(self, flags):
        return self.daemon("coordinator/maypole-coordinator", flags)

    def start_worker(self, node, flags):
        self.daemon("worker/maypole-worker", flags + ["--network=127.0.0.1"])

    def daemon(self, program, flags, prefix=()):
        """Starts it and returns what it announces, as {"listen": ...}."""
        reader, writer = os.pipe()
        process = subprocess.Popen(
            list(prefix) + [os.path.join(harness.ROOT, program), "--announce_fd=%d" % writer, "--log_level=warning"] + flags,
            env=harness.environment(self.env), pass_fds=[writer], stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=self._log)
        self.processes.append(process)
        os.close(writer)
        with os.fdopen(reader) as f:
            line = f.readline()
        if not line.endswith("\n"):
            raise AssertionError("%s ended before it was ready" % program)
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    @property
    def agents(self):
        return ",".join(self.sockets)

    @property
    def coordinator(self):
        """Its process id."""
        return self.processes[0].pid

    @property
    def workers(self):
        """Process ids of the agents, by node."""
        return [p.pid for p in self.processes[1:]]

    def log(self):
        if not os.path.exists(os.path.join(self.dir, "log")):
            return ""
        with open(os.path.join(self.dir, "log"), errors="replace") as f:
            return f.read()

    def __exit__(self, kind, value, trace):
        if kind is not None:
            sys.stderr.write("--- daemons\n%s\n" % self.log()[-4000:])
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        return False
