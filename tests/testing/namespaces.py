"""Two nodes as network namespaces joined by a veth pair (needs root).

    with Namespaces() as net:
        net.run(0, [...])    # in node 0's network namespace
        net.crossed()        # bytes over the wire, both directions

Names contain the process id; everything is removed at the end, even when the
test fails or gets SIGTERM.
"""

import os
import shutil
import signal
import subprocess
import sys

import harness


def available():
    """None, or the reason why namespaces cannot be made here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip", path=harness.environment()["PATH"]) is None:
        return "iproute2 is not installed"
    name = "mp%dt" % os.getpid()
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True,
                          text=True, env=harness.environment())
    if made.returncode != 0:
        return "cannot make a network namespace: " + made.stderr.strip()
    _ip("netns", "del", name)
    return None


def _ip(*args):
    subprocess.run(["ip"] + list(args), check=True, env=harness.environment())


class Namespaces:
    ADDRESSES = ("10.213.77.1", "10.213.77.2")
    DATA = ("10.213.78.1", "10.213.78.2")  # of a second wire

    def __init__(self, rate=None, wires=1):
        self.names = ["mp%d%s" % (os.getpid(), side) for side in "ab"]
        self.links = ["v%d%s" % (os.getpid(), side) for side in "ab"]
        self.data_links = ["w%d%s" % (os.getpid(), side) for side in "ab"] if wires == 2 else []
        self.rate = rate
        self.processes = []

    def __enter__(self):
        self._old = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self):
        for name in self.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        self._join(self.links, self.ADDRESSES)
        if self.data_links:
            self._join(self.data_links, self.DATA)

    def _join(self, links, addresses):
        _ip("link", "add", links[0], "netns", self.names[0], "type", "veth",
            "peer", "name", links[1], "netns", self.names[1])
        for name, link, address in zip(self.names, links, addresses):
            _ip("-n", name, "addr", "add", address + "/24", "dev", link)
            _ip("-n", name, "link", "set", link, "up")
            if self.rate:
                self.limit(name, link, self.rate, "1mb")

    @staticmethod
    def ip(*args):
        _ip(*args)

    @staticmethod
    def limit(name, link, rate, burst):
        """What the link of this namespace may send."""
        subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", link, "root", "tbf", "rate", rate, "burst", burst,
                        "latency", "50ms"], check=True, env=harness.environment())

    def __exit__(self, *_):
        for process in self.processes:
            harness.kill_tree(process)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], env=harness.environment(),
                           stderr=subprocess.DEVNULL)
        signal.signal(signal.SIGTERM, self._old)

    def run(self, node, command, isolated=False, **kwargs):
        """Runs a command in the node's network namespace; isolated: also in its own PID and mount namespaces."""
        inside = ["ip", "netns", "exec", self.names[node]]
        if isolated:
            inside += ["unshare", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]
        process = subprocess.Popen(inside + command, **kwargs)
        self.processes.append(process)
        return process

    def cut_data(self):
        """Takes node 1 off the second wire."""
        _ip("-n", self.names[1], "link", "set", self.data_links[1], "down")

    def mend_data(self):
        _ip("-n", self.names[1], "link", "set", self.data_links[1], "up")

    def crossed(self, data=False):
        """Bytes that node 0 has sent and received over the wire, or over the second one."""
        out = []
        for direction in ("tx", "rx"):
            path = "/sys/class/net/%s/statistics/%s_bytes" % ((self.data_links if data else self.links)[0], direction)
            out.append(int(subprocess.check_output(
                ["ip", "netns", "exec", self.names[0], "cat", path], env=harness.environment())))
        return out
