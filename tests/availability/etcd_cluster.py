"""A cluster of real etcd members on loopback, for tests.

    with EtcdCluster(3) as etcd:
        run("--etcd=" + etcd.addresses)
        etcd.kill(0)
        etcd.start_dead()

The members' data is in a temporary directory, in memory where possible. The
kernel chooses their ports; if another process takes a port before the member
starts, the start fails with an error that says so.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

PROGRAM = "/usr/bin/etcd"
PATIENCE = 60  # seconds
# Short, so that leases of one second are possible: etcd allows none that is
# shorter than one and a half election timeouts.
HEARTBEAT_MS = 50
ELECTION_MS = 500


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def fetch(url):
    """The text at the URL; None if nobody answers in time."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as page:
            return page.read().decode()
    except (urllib.error.URLError, OSError):
        return None


def wait_for(what, condition, patience=PATIENCE):
    """Waits until condition() is true, and returns its value and the seconds."""
    begin = time.monotonic()
    while time.monotonic() - begin < patience:
        value = condition()
        if value:
            return value, time.monotonic() - begin
        time.sleep(0.02)
    raise AssertionError(f"not within {patience} s: {what}")


class EtcdCluster:
    def __init__(self, size):
        memory = "/dev/shm"
        self.dir = tempfile.mkdtemp(prefix="etcd", dir=memory if os.access(memory, os.W_OK) else None)
        ports = free_ports(2 * size)
        self.clients = [f"127.0.0.1:{p}" for p in ports[:size]]
        self.peers = [f"http://127.0.0.1:{p}" for p in ports[size:]]
        self.members = [None] * size

    @property
    def addresses(self):
        return ",".join(self.clients)

    def __enter__(self):
        try:
            self.start_dead()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for i, member in enumerate(self.members):
            if member is not None:
                self.kill(i)
        shutil.rmtree(self.dir)

    def start_dead(self):
        """Starts all members that do not run, and waits until all are healthy."""
        for i, member in enumerate(self.members):
            if member is None:
                self._start(i)
        self._wait_healthy()

    def _start(self, i):
        client = "http://" + self.clients[i]
        with open(os.path.join(self.dir, f"log{i}"), "ab") as log:
            self.members[i] = subprocess.Popen(
                [
                    PROGRAM,
                    f"--name=m{i}",
                    f"--data-dir={self.dir}/m{i}",
                    f"--listen-client-urls={client}",
                    f"--advertise-client-urls={client}",
                    f"--listen-peer-urls={self.peers[i]}",
                    f"--initial-advertise-peer-urls={self.peers[i]}",
                    "--initial-cluster=" + ",".join(f"m{n}={url}" for n, url in enumerate(self.peers)),
                    f"--heartbeat-interval={HEARTBEAT_MS}",
                    f"--election-timeout={ELECTION_MS}",
                ],
                stdout=log,
                stderr=log,
            )

    def kill(self, i, number=signal.SIGKILL):
        self.members[i].send_signal(number)
        self.members[i].wait(PATIENCE)
        self.members[i] = None

    def control(self, *arguments):
        """etcdctl with these arguments."""
        subprocess.run(
            ["/usr/bin/etcdctl", f"--endpoints={self.addresses}", *arguments],
            env={"ETCDCTL_API": "3"},
            stdout=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=True,
        )

    def _wait_healthy(self):
        def healthy():
            for i, member in enumerate(self.members):
                if member.poll() is not None:
                    with open(os.path.join(self.dir, f"log{i}")) as log:
                        raise AssertionError(f"member {i} has ended: {log.read()[-2000:]}")
                if '"true"' not in (fetch(f"http://{self.clients[i]}/health") or ""):
                    return False
            return True

        wait_for("etcd is healthy", healthy)
