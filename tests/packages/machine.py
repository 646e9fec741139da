"""Clean Debian machines for tests: root directories that mmdebstrap makes, entered by systemd-nspawn."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

_SECONDS = 600
# Of a command's process; systemd-nspawn has warnings of its own.
_PROCESS = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True,
            "env": {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}}
# The mirror of mmdebstrap, without security updates: when a release has ended, theirs lacks files that it lists.
_MIRROR = "http://deb.debian.org/debian"
# Which programs the kernel gives to an emulator.
_BINFMT = "/proc/sys/fs/binfmt_misc"
_NSPAWN = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit"]


@contextlib.contextmanager
def emulation(processor):
    """While the block runs, so do programs for another processor, also in machines: the kernel gives them to qemu-user.

    Raises unittest.SkipTest if that cannot be done here.
    """
    rule = "qemu-" + processor
    if os.path.exists(os.path.join(_BINFMT, rule)):
        yield  # as the package qemu-user-static has it done, where systemd is
        return
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root to run programs for %s" % processor)
    try:
        if not os.path.exists(_BINFMT + "/register"):
            subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", _BINFMT], check=True)
        shutil.copyfile("/usr/lib/binfmt.d/%s.conf" % rule, _BINFMT + "/register")
    except (OSError, subprocess.CalledProcessError) as error:
        raise unittest.SkipTest("cannot run programs for %s: %s" % (processor, error)) from error
    try:
        yield
    finally:
        with open(os.path.join(_BINFMT, rule), "w", encoding="utf-8") as f:
            f.write("-1")


def make(path, suite="bookworm", packages=(), architecture=None):
    """Makes a minimal Debian, with more packages, at `path`. Raises unittest.SkipTest if that cannot be done here.

    architecture: another one than this machine's; within emulation().
    """
    if os.geteuid() != 0:
        raise unittest.SkipTest("needs root to make a root directory")
    for tool in ("mmdebstrap", "systemd-nspawn", "dpkg-scanpackages"):
        if shutil.which(tool) is None:
            raise unittest.SkipTest("%s is missing: apt-get install mmdebstrap systemd-container dpkg-dev" % tool)
    options = ["--include=" + ",".join(packages)] if packages else []
    options += ["--architectures=" + architecture, "--skip=check/qemu"] if architecture else []
    done = subprocess.run(["mmdebstrap", "--variant=minbase", "--skip=cleanup/apt/lists", *options, suite, path, _MIRROR],
                          capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = "mmdebstrap cannot make a root directory: " + done.stderr[-2000:]
    if not reaches_mirror(suite):
        raise unittest.SkipTest("Debian's mirror cannot be reached; " + said)
    raise AssertionError(said)


def reaches_mirror(suite):
    with tempfile.TemporaryDirectory() as place:
        return subprocess.run(["/usr/lib/apt/apt-helper", "download-file", "%s/dists/%s/InRelease" % (_MIRROR, suite),
                               place + "/InRelease"], capture_output=True, check=False).returncode == 0


class Machine:
    """A copy of a root directory; its systemd runs from boot() on, without a network. remove() ends and deletes it."""

    def __init__(self, original, path):
        subprocess.run(["cp", "--archive", "--reflink=auto", original, path], check=True)
        self.path = path
        self._systemd = None

    def run(self, command, status=0, seconds=_SECONDS):
        """Runs a command of the shell as root; returns what it has printed. Raises AssertionError at another status."""
        done = subprocess.run(self._argv(command), stdin=subprocess.DEVNULL, timeout=seconds, check=False, **_PROCESS)
        if done.returncode != status:
            raise AssertionError("%s: status %d, expected %d:\n%s" % (command, done.returncode, status, done.stdout))
        return done.stdout

    @contextlib.contextmanager
    def start(self, command):
        """Runs a command of the shell while the block does; its standard input ends then, and so has the command to."""
        process = subprocess.Popen(self._argv(command), stdin=subprocess.PIPE, **_PROCESS)
        try:
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            finally:
                process.stdout.close()

    def _argv(self, command):
        prefix = _NSPAWN + ["--directory", self.path, "--pipe", "--as-pid2"]
        if self._systemd is not None:
            prefix = ["nsenter", "--target", str(self._leader()), "--all"]
        return prefix + ["sh", "-c", "exec 2>&1; " + command]

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
