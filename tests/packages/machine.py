"""Clean Debian machines for tests: root directories that mmdebstrap makes, entered by systemd-nspawn."""

import os
import shutil
import signal
import subprocess
import time
import unittest

_SECONDS = 600
_NSPAWN = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit"]


def make(path, suite="bookworm"):
    """Makes a minimal Debian at `path`. Raises unittest.SkipTest if that cannot be done here."""
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root to make a root directory")
    for tool in ("mmdebstrap", "systemd-nspawn", "dpkg-scanpackages"):
        if shutil.which(tool) is None:
            raise unittest.SkipTest("%s is missing: apt-get install mmdebstrap systemd-container dpkg-dev" % tool)
    done = subprocess.run(["mmdebstrap", "--variant=minbase", "--skip=cleanup/apt/lists", suite, path],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise unittest.SkipTest("mmdebstrap cannot make a root directory (is Debian's mirror reachable?): " +
                                done.stderr[-500:])


class Machine:
    """A copy of a root directory; its systemd runs from boot() on, without a network. remove() ends and deletes it."""

    def __init__(self, original, path):
        subprocess.run(["cp", "--archive", "--reflink=auto", original, path], check=True)
        self.path = path
        self._systemd = None

    def run(self, command, status=0, seconds=_SECONDS):
        """Runs a command of the shell as root; returns what it has printed. Raises AssertionError at another status."""
        prefix = _NSPAWN + ["--directory", self.path, "--pipe", "--as-pid2"]
        if self._systemd is not None:
            prefix = ["nsenter", "--target", str(self._leader()), "--all"]
        # systemd-nspawn has warnings of its own.
        done = subprocess.run(prefix + ["sh", "-c", "exec 2>&1; " + command], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              timeout=seconds, check=False,
                              env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                                   "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"})
        if done.returncode != status:
            raise AssertionError("%s: status %d, expected %d:\n%s" % (command, done.returncode, status, done.stdout))
        return done.stdout

    def write(self, path, text):
        path = self.path + path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)

    def boot(self):
        """Starts systemd, and returns when it has started all services."""
        self._systemd = subprocess.Popen(
            _NSPAWN + ["--directory", self.path, "--boot", "--private-network", "--console=pipe",
                       "--kill-signal=SIGRTMIN+3"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        self.wait("systemctl is-system-running --wait | grep -e running -e degraded")

    def wait(self, command, seconds=60):
        """Waits until a command of the shell succeeds; returns what it has printed."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.run(command)
            except (AssertionError, OSError) as error:
                if time.monotonic() > end:
                    raise AssertionError("waited %d s for: %s" % (seconds, command)) from error
            time.sleep(0.2)

    def _leader(self):
        """The process id of the machine's systemd."""
        with open("/proc/%d/task/%d/children" % (self._systemd.pid, self._systemd.pid), encoding="utf-8") as f:
            children = f.read().split()
        if not children:
            raise OSError("systemd-nspawn has not started systemd yet")
        return int(children[0])

    def remove(self):
        if self._systemd is not None:
            self._systemd.send_signal(signal.SIGTERM)
            try:
                self._systemd.wait(60)
            except subprocess.TimeoutExpired:
                self._systemd.kill()
                self._systemd.wait()
        shutil.rmtree(self.path)
