"""Shared by the tests of maypolerun: a directory with maypolerun and fake daemons.

The fakes write their announcement and wait, so that these tests cover the
launcher and not the rest of Maypole.
"""
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

MAYPOLERUN = os.path.join(os.environ.get("TEST_SRCDIR", ""), "maypole/client/launcher/maypolerun")
PATIENCE = 20  # how many seconds to wait for a condition that must become true

FAKE_COORDINATOR = """#!/bin/sh
echo "$@" >"$FAKE_DIR/coordinator.args"
echo $$ >"$FAKE_DIR/coordinator.pid"
for a; do case "$a" in --secret_file=*) s="${a#*=}" ;; esac; done
stat -c %a "$s" "$(dirname "$s")" >"$FAKE_DIR/modes"
echo "listen=127.0.0.1:1001 metrics=127.0.0.1:1002" >&3
exec 3>&-
exec sleep "$FAKE_SLEEP"
"""

FAKE_WORKER = """#!/bin/sh
for a; do case "$a" in --socket=*) s="${a#*=}" ;; --node=*) n="${a#*=}" ;; esac; done
echo "$@" >"$FAKE_DIR/$n.args"
echo $$ >"$FAKE_DIR/$n.pid"
echo "socket=$s metrics=127.0.0.1:${n#node}2003" >&3
exec 3>&-
exec sleep "$FAKE_SLEEP"
"""

FAKE_SSH = """#!/bin/sh
echo "$@" >>"$FAKE_DIR/ssh.args"
for a; do last="$a"; done
exec sh -c "$last"
"""

# What is ignored stays ignored in maypolerun, and shells ignore these for what they start in the background.
for _sig in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_sig) == signal.SIG_IGN:
        signal.signal(_sig, signal.SIG_DFL)


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("waited %d s in vain for %s" % (PATIENCE, what))


class LauncherTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.runtime = tempfile.mkdtemp(prefix="mpr", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.runtime, ignore_errors=True)
        # The command line of every process of this test contains this number.
        self.marker = "%d.%d" % (100000 + os.getpid(), time.monotonic_ns() % 10**9)
        self.maypolerun = os.path.join(self.dir, "maypolerun")
        shutil.copy(MAYPOLERUN, self.maypolerun)
        self.write("maypole-coordinator", FAKE_COORDINATOR)
        self.write("maypole-worker", FAKE_WORKER)
        self.env = dict(os.environ, FAKE_DIR=self.dir, FAKE_SLEEP=self.marker, XDG_RUNTIME_DIR=self.runtime)
        for name in ("MAYPOLE_AGENT", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"):
            self.env.pop(name, None)

    def tearDown(self):
        leftovers = self.processes()
        for pid in leftovers:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(leftovers, [], "processes were left behind")
        self.assertEqual(os.listdir(self.runtime), [], "the private directory was left behind")

    def remove_directories(self):
        """Those that remain after kill -9 of guard and supervisor at once."""
        for name in os.listdir(self.runtime):
            shutil.rmtree(os.path.join(self.runtime, name))

    def write(self, name, text, mode=0o755):
        """Writes a file at once, also for a program that reads it just then."""
        path = os.path.join(self.dir, name)
        part = os.path.join(self.dir, ".part")
        with open(part, "w") as f:
            f.write(text)
        os.chmod(part, mode)
        os.replace(part, path)
        return path

    def read(self, name):
        with open(os.path.join(self.dir, name)) as f:
            return f.read()

    def start(self, *args, **kwargs):
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("stderr", subprocess.PIPE)
        kwargs.setdefault("env", self.env)
        kwargs.setdefault("text", True)
        process = subprocess.Popen([self.maypolerun, *args], start_new_session=True, **kwargs)
        self.addCleanup(self.close, process)
        return process

    @staticmethod
    def close(process):
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()

    def run_job(self, *args, **kwargs):
        """Runs maypolerun to its end; returns (exit status, stdout, stderr)."""
        process = self.start(*args, **kwargs)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def processes(self):
        """The running processes whose command line contains the marker."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    if self.marker.encode() in f.read():
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def nodes(self):
        """Pids of all `maypolerun --node-of-job`: guards and supervisors."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    argv = f.read().split(b"\0")
            except OSError:
                continue
            if argv[:2] == [self.maypolerun.encode(), b"--node-of-job"]:
                found.append(int(pid))
        return found

    @staticmethod
    def parent(pid):
        with open("/proc/%d/stat" % pid) as f:
            return int(f.read().rpartition(")")[2].split()[1])

    def wait_until_none_lives(self):
        wait_for(lambda: not self.processes(), "the end of all processes")

    def wait_for_file(self, name):
        path = os.path.join(self.dir, name)
        wait_for(lambda: os.path.exists(path), name)

    def wait_for_ranks(self, n):
        """Waits until n ranks have created their file rank.N; see RANK_IS_UP."""
        for r in range(n):
            self.wait_for_file("rank.%d" % r)


RANK_IS_UP = ': >"$FAKE_DIR/rank.$MAYPOLE_RANK"; '
