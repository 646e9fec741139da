"""Coordinators that elect a leader, and raw streams to them, for tests."""

import os
import queue
import re
import signal
import subprocess
import tempfile
import threading

from etcd_cluster import PATIENCE, fetch, wait_for

ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
COORDINATOR = os.path.join(ROOT, "coordinator/maypole-coordinator")
CTL = os.path.join(ROOT, "client/ctl/maypolectl")
STREAM = os.path.join(ROOT, "tests/availability/executor_stream")


class Coordinator:
    """A process; `listen` is its address."""

    def __init__(self, *flags):
        read, write = os.pipe()
        self.log_file = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [COORDINATOR, f"--announce_fd={write}", *flags], pass_fds=[write], stderr=self.log_file
        )
        os.close(write)
        with os.fdopen(read) as announced:
            self.line = announced.read()
        self.listen, self.metrics = re.match(r"listen=(\S+) metrics=(\S+)\n$", self.line).groups()

    def metric(self, name):
        """The value now; None if the process does not answer."""
        page = fetch(f"http://{self.metrics}/metrics")
        found = re.search(rf"^{name} (\S+)$", page or "", re.MULTILINE)
        return float(found.group(1)) if found else None

    def leads(self):
        return self.metric("maypole_coordinator_leader") == 1

    def term(self):
        return self.metric("maypole_coordinator_term")

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Returns when no thread runs any more, which is not when the signal has been sent."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def wait(self):
        return self.process.wait(PATIENCE)

    def log(self):
        self.log_file.seek(0)
        return self.log_file.read()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        self.log_file.close()


class Group:
    """Coordinators of one cluster; ends them on the way out."""

    def __init__(self, etcd, prefix, ttl):
        self.flags = [f"--etcd={etcd.addresses}", f"--etcd_prefix={prefix}", f"--lease_ttl={ttl}s"]
        self.all = []
        self.streams = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.streams + self.all:
            one.close()

    def start(self, *flags):
        self.all.append(Coordinator(*self.flags, *flags))
        return self.all[-1]

    def leader(self, among=None):
        """Waits until one leads; returns it and the seconds that this took."""

        def leading():
            return [c for c in among or self.all if c.process.poll() is None and c.leads()]

        leaders, seconds = wait_for("a coordinator leads", leading)
        assert len(leaders) == 1, [c.log() for c in leaders]
        return leaders[0], seconds

    def standbys(self, leader):
        """Waits until all others follow the leader, and returns them."""
        others = [c for c in self.all if c is not leader and c.process.poll() is None]
        for c in others:
            follows = f'event=standby leader="{leader.listen}" '
            wait_for("it is a standby", lambda c=c: follows in c.log())
        return others

    def stream(self, coordinator, job, node):
        self.streams.append(Stream(coordinator.listen, job, node))
        return self.streams[-1]


class Stream:
    """An executor_stream; `next()` returns the lines that it prints."""

    def __init__(self, address, job, node):
        self.process = subprocess.Popen(
            [STREAM, address, job, node], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def next(self):
        """The next line, except acknowledgements."""
        while True:
            line = self.lines.get(timeout=PATIENCE)
            if line != "ack":
                return line

    def ready(self, size, rank):
        self.process.stdin.write(f"ready {size} {rank}\n")
        self.process.stdin.flush()

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()
