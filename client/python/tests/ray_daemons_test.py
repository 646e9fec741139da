"""The daemons of Ray's and Spark's jobs, with scripts in their place: start, end, loss, and what is left."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from maypole.common import hosts
from maypole.ray import nodes

DAEMON = "#!" + sys.executable + """
import os, signal, sys, time
flags = dict(word.partition("=")[::2] for word in sys.argv[1:])
name = os.path.basename(sys.argv[0])
print("level=info", name, flush=True, file=sys.stderr)
if os.environ.get("MAYPOLE_FAIL") == name:
    sys.exit("cannot listen: Address already in use")
with open(os.environ["MAYPOLE_PIDS"], "a") as f:
    f.write("%d\\n" % os.getpid())
if os.environ.get("MAYPOLE_SILENT") != name:
    with open(int(flags["--announce_fd"]), "w") as f:
        if name == "maypole-coordinator":
            f.write("listen=127.0.0.1:4001 metrics=127.0.0.1:4002\\n")
        else:
            with open(flags["--secret_file"]) as secret:
                f.write("metrics=127.0.0.1:4003 socket=%s %s\\n" % (flags["--socket"], secret.read().strip()[:1]))
time.sleep(1000)
"""


def stat(pid):
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rpartition(")")[2].split()


def state_of(pid):
    return stat(pid)[0]


def parent_of(pid):
    return int(stat(pid)[1])


def alive(pid):
    try:
        return state_of(pid) != "Z"
    except OSError:
        return False


def wait_until(condition, what):
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("waited 30 s for " + what)
        time.sleep(0.01)


class DaemonsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="mpr", dir="/tmp")
        self.addCleanup(directory.cleanup)
        self.dir = directory.name
        self.bin, self.runtime, self.pids_file = (os.path.join(self.dir, name) for name in ("bin", "run", "pids"))
        os.mkdir(self.bin)
        os.mkdir(self.runtime)
        for name in ("maypole-coordinator", "maypole-worker"):
            with open(os.open(os.path.join(self.bin, name), os.O_CREAT | os.O_WRONLY, 0o755), "w") as f:
                f.write(DAEMON)
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for pid in self.pids():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)

    def variables(self, **more):
        return {"MAYPOLE_BIN": self.bin, "MAYPOLE_RUNTIME_DIR": self.runtime, "MAYPOLE_PIDS": self.pids_file, **more}

    def pids(self):
        try:
            with open(self.pids_file) as f:
                return [int(line) for line in f.read().splitlines()]
        except FileNotFoundError:
            return []

    def ended(self):
        return not any(alive(pid) for pid in self.pids()) and not os.listdir(self.runtime)

    def actor(self, **more):
        actor = nodes.NodeActor(self.variables(**more))
        self.addCleanup(actor.stop)
        return actor

    def test_they_start_and_end(self):
        actor = self.actor()
        coordinator = actor.start_coordinator("127.0.0.1:0", 20, "warning")
        self.assertEqual(coordinator.address, "127.0.0.1:4001")
        (directory,) = os.listdir(self.runtime)
        self.assertEqual(os.stat(os.path.join(self.runtime, directory)).st_mode & 0o777, 0o700)
        agent = actor.start_agent(coordinator, "n0", "h", "", (), 20, "warning")
        (other,) = set(os.listdir(self.runtime)) - {directory}
        self.assertEqual(agent, f"{self.runtime}/{other}/agent.sock {coordinator.secret[0]}")
        self.assertEqual(len(self.pids()), 2)
        actor.stop()
        self.assertTrue(self.ended())

    def test_one_that_ends_is_reported(self):
        actor = self.actor()
        actor.start_coordinator("127.0.0.1:0", 20, "warning")
        self.assertEqual(actor.lost(), "")
        (pid,) = self.pids()
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(actor.wait_lost(),
                         f"maypole-coordinator (pid {pid}) was killed by signal 9: level=info maypole-coordinator")

    def test_one_that_is_stopped_is_not_lost(self):
        actor = self.actor()
        actor.start_coordinator("127.0.0.1:0", 20, "warning")
        (pid,) = self.pids()
        os.kill(pid, signal.SIGSTOP)
        parent = parent_of(pid)
        wait_until(lambda: state_of(pid) == "T" and state_of(parent) == "S", "the guard to sleep")
        self.assertEqual(actor.lost(), "")
        os.kill(pid, signal.SIGCONT)
        actor.stop()
        self.assertTrue(self.ended())

    def test_one_that_does_not_start(self):
        actor = self.actor(MAYPOLE_FAIL="maypole-coordinator", MAYPOLE_SILENT="maypole-worker")
        with self.assertRaisesRegex(RuntimeError, r"maypole-coordinator could not be started: maypole-coordinator "
                                                  r"\(pid \d+\) exited with status 1: cannot listen: Address already"):
            actor.start_coordinator("127.0.0.1:0", 20, "warning")
        with self.assertRaisesRegex(RuntimeError, "maypole-worker was not ready within 1 s: level=info maypole-worker"):
            actor.start_agent(nodes.Coordinator("x:1", "s"), "n0", "h", "", (), 1, "warning")
        with self.assertRaisesRegex(RuntimeError, "has none of these network interfaces"):
            actor.start_agent(nodes.Coordinator("x:1", "s"), "n0", "h", "", ["nosuch0"], 1, "warning")

    def test_no_program(self):
        actor = self.actor(MAYPOLE_BIN="/nowhere")
        with self.assertRaisesRegex(RuntimeError, "no program maypole-coordinator in /nowhere"):
            actor.start_coordinator("127.0.0.1:0", 20, "warning")

    def test_they_end_with_whoever_has_started_them(self):
        """Also if a child of it lives on, which has its descriptors."""
        code = ("import os, time; from maypole.ray import nodes; actor = nodes.NodeActor(%r); "
                "actor.start_coordinator('127.0.0.1:0', 20, 'warning'); child = os.fork(); child or time.sleep(1000); "
                "print(child, flush=True); time.sleep(1000)")
        starter = subprocess.Popen([sys.executable, "-c", code % self.variables()], stdout=subprocess.PIPE, text=True,
                                   env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
        self.addCleanup(starter.stdout.close)
        self.addCleanup(os.kill, int(starter.stdout.readline()), signal.SIGKILL)
        starter.kill()
        starter.wait()
        wait_until(self.ended, "the end of the daemons")

    def test_they_end_with_the_program_that_runs_them(self):
        actor = self.actor()
        actor.start_coordinator("127.0.0.1:0", 20, "warning")
        (pid,) = self.pids()
        os.kill(parent_of(pid), signal.SIGKILL)
        wait_until(lambda: not alive(pid), "the end of the daemon")
        self.assertEqual(actor.wait_lost(), "the program that runs maypole-coordinator has ended")
        # Its directory is there still; the next one removes it, when it is not new.
        (left,) = os.listdir(self.runtime)
        os.utime(os.path.join(self.runtime, left), (0, 0))
        other = self.actor()
        other.start_coordinator("127.0.0.1:0", 20, "warning")
        self.assertNotIn(left, os.listdir(self.runtime))

    def test_an_agent_that_runs_is_used(self):
        with mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": self.dir}):
            actor = self.actor()
        running = nodes.Coordinator(running_agents=True)
        self.assertEqual(actor.running_agent(), "")
        with self.assertRaisesRegex(RuntimeError, "none runs on this node: start maypole-worker on all nodes, or on none"):
            actor.start_agent(running, "n0", "h", "", (), 20, "warning")
        path = os.path.join(self.dir, "maypole-agent.sock")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            self.assertEqual(actor.running_agent(), path)
            self.assertEqual(actor.start_agent(running, "n0", "h", "", (), 20, "warning"), path)
        self.assertEqual(self.pids(), [])

    def test_the_announcement(self):
        self.assertEqual(hosts.parse_announcement("metrics=1:2 socket=/a b/c\n"),
                         {"metrics": "1:2", "socket": "/a b/c"})

    def test_addresses(self):
        self.assertEqual(hosts.address_of("lo"), "127.0.0.1")
        self.assertIsNone(hosts.address_of("nosuch0"))
        self.assertEqual(hosts.own_address("127.0.0.1"), "127.0.0.1")
        both = [(socket.AF_INET6, socket.SOCK_DGRAM, 0, "", ("::1", 9, 0, 0)),
                (socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", 9))]
        with mock.patch.object(socket, "getaddrinfo", return_value=both):
            self.assertEqual(hosts.own_address("localhost"), "127.0.0.1")
        self.assertIsNone(hosts.own_address(""))
        self.assertIsNone(hosts.own_address("no.such.host.invalid"))


if __name__ == "__main__":
    unittest.main()
