"""Starts real jobs for tests: maypolerun, its daemons and Python ranks.

Used by the multi-process tests (bazel py_test). Everything a test starts is in
one `Job`, which ends it by process id, even when the test fails:

    with harness.Job(np=4, nodes=2, program="collectives.py") as job:
        job.wait(60)
        job.check_ok()
        value = job.record(0)["value"]

Rank programs are in tests/programs; they report results to the test by
`rank.record(...)` (a JSON file per rank) and synchronise with it by files in
`job.dir`. All waits are for conditions, with a bound that fails the test.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

PYTHON = "/usr/bin/python3"

# What is ignored stays ignored in maypolerun, and shells ignore these for what they start in the background.
for _sig in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_sig) == signal.SIG_IGN:
        signal.signal(_sig, signal.SIG_DFL)


def _root():
    """Bazel's runfiles of this test: the repository's tree with built files.

    (Not by __file__: Python resolves the links of the script's directory.)
    Outside a test: the repository, where nothing is built.
    """
    if "TEST_SRCDIR" not in os.environ:
        return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])


ROOT = _root()
PROGRAMS = ["client/launcher/maypolerun", "coordinator/maypole-coordinator", "worker/maypole-worker"]
LIBRARY = os.path.join(ROOT, "client", "libmaypole.so")


def environment(extra=None, root=ROOT):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAYPOLE_")}
    dirs = [os.path.join(root, os.path.dirname(p)) for p in PROGRAMS]
    env["PATH"] = os.pathsep.join(dirs + ["/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    env["PYTHONPATH"] = os.pathsep.join([os.path.join(root, "client", "python"), os.path.join(root, "tests", "testing")])
    env["MAYPOLE_LIBRARY"] = os.path.join(root, "client", "libmaypole.so")
    env["OMP_NUM_THREADS"] = "1"
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in ("PYTHONHOME", "PYTHONSAFEPATH"):
        env.pop(name, None)
    env.update(extra or {})
    return env


def protocol_version():
    """The version of the session protocol, as the built maypolerun says it."""
    said = subprocess.run([os.path.join(ROOT, PROGRAMS[0]), "--check-build"], capture_output=True, text=True, timeout=30)
    return said.stdout.partition("(protocol ")[2].partition(")")[0]


def public_copy():
    """A copy of programs, package and rank programs that every user can read.

    (A build tree may lie in somebody's private home.) The caller removes it.
    """
    root = tempfile.mkdtemp(prefix="mpc", dir="/tmp")
    os.chmod(root, 0o755)
    for path in PROGRAMS + ["client/libmaypole.so"]:
        os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, path), os.path.join(root, path))
        os.chmod(os.path.join(root, path), 0o755)
    for path in ("client/python/maypole", "tests"):
        shutil.copytree(os.path.join(ROOT, path), os.path.join(root, path))
    for at, dirs, files in os.walk(root):
        for name in dirs + files:
            os.chmod(os.path.join(at, name), os.stat(os.path.join(at, name)).st_mode | 0o555)
    return root


def wait_until(condition, seconds, what):
    """The first true value of condition(); fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("waited %g s for %s" % (seconds, what))
        time.sleep(0.01)


def processes():
    """{pid: (parent pid, argv)} of all live processes that we may read."""
    out = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry) as f:
                fields = f.read().rpartition(")")[2].split()
            with open("/proc/%s/cmdline" % entry, "rb") as f:
                argv = f.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if fields[0] != "Z":
            out[int(entry)] = (int(fields[1]), argv)
    return out


def kill(pid, number=signal.SIGKILL):
    """Kills a process; it may have ended already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def descendants(pid):
    table = processes()
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        children = [p for p, (pp, _) in table.items() if pp == parent]
        found += children
        todo += children
    return found


def kill_tree(process):
    """Kills a process that was started here, and all its descendants."""
    if process.poll() is None:
        for pid in [process.pid] + descendants(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
    process.wait()


def end(process):
    """kill_tree(), then closes its pipes."""
    kill_tree(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def metric(address, name):
    """The sum of a metric over its labels; `name` may select some: 'x{a="b"'."""
    with urllib.request.urlopen("http://%s/metrics" % address, timeout=5) as reply:
        text = reply.read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.startswith(name) and (line[len(name)] in "{ " or "{" in name))


class Job:
    """One maypolerun with a rank program of tests/programs (or any command). nodes: None for an elastic job."""

    def __init__(self, np, nodes=1, program=None, args=(), launcher_args=(),
                 env=None, command=None, prefix=(), root=ROOT):
        # Short: unix sockets lie in here.
        self.dir = tempfile.mkdtemp(prefix="mp", dir="/tmp")
        os.chmod(self.dir, 0o777)
        if command is None:
            path = os.path.join(root, "tests", "programs", program)
            command = [PYTHON, path] + [str(a) for a in args]
        self.endpoints_file = os.path.join(self.dir, "endpoints")
        self.argv = list(prefix) + [
            os.path.join(root, PROGRAMS[0]), "-np", str(np),
            "--endpoints-file", self.endpoints_file,
        ] + ([] if nodes is None else ["--nodes", str(nodes)]) + list(launcher_args) + ["--"] + command
        extra = {"MAYPOLE_TEST_DIR": self.dir, "TMPDIR": self.dir}
        extra.update(env or {})
        self.np = np
        self._out = open(os.path.join(self.dir, "stdout"), "wb")
        self._err = open(os.path.join(self.dir, "stderr"), "wb")
        self.process = subprocess.Popen(
            self.argv, env=environment(extra, root), stdout=self._out,
            stderr=self._err, stdin=subprocess.DEVNULL, cwd=self.dir)
        self.started = time.monotonic()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            sys.stderr.write("--- %s\n--- stdout\n%s\n--- stderr\n%s\n" % (
                " ".join(self.argv), self.stdout()[-6000:], self.stderr()[-6000:]))
        self.stop()
        return False

    def stop(self):
        kill_tree(self.process)
        self._out.close()
        self._err.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def _read(self, name):
        with open(os.path.join(self.dir, name), encoding="utf-8",
                  errors="replace") as f:
            return f.read()

    def stdout(self):
        return self._read("stdout")

    def stderr(self):
        return self._read("stderr")

    def wait(self, seconds):
        """maypolerun's exit status."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError("the job did not end within %g s" % seconds)

    def check_ok(self, seconds=90):
        status = self.wait(seconds)
        if status != 0:
            raise AssertionError("maypolerun ended with status %d" % status)

    def record(self, rank):
        with open(os.path.join(self.dir, "rank.%d.json" % rank)) as f:
            return json.load(f)

    def records(self):
        return [self.record(r) for r in range(self.np)]

    def await_file(self, name, seconds=60):
        path = os.path.join(self.dir, name)

        def there():
            if self.process.poll() is not None and not os.path.exists(path):
                raise AssertionError("the job ended before %s appeared" % name)
            return os.path.exists(path)

        wait_until(there, seconds, name)
        with open(path) as f:
            return f.read()

    def touch(self, name):
        with open(os.path.join(self.dir, name), "w"):
            pass

    def rank_pid(self, rank):
        """The rank's process id; its program calls rank.started() first."""
        return int(self.await_file("rank.%d.pid" % rank))

    def daemons(self, name):
        """Pids of this job's maypole-coordinator, or of its agents (maypole-worker)."""
        table = processes()
        return [p for p in descendants(self.process.pid)
                if p in table and os.path.basename(table[p][1][0]) == name
                and "--executor" not in table[p][1]]

    def executors(self):
        """Pids of this job's executors, by node."""
        workers = sorted(self.daemons("maypole-worker"))
        table = processes()
        found = []
        for worker in workers:
            found += [p for p, (pp, argv) in table.items()
                      if pp == worker and "--executor" in argv]
        return found

    def endpoints(self):
        """{"coordinator": "127.0.0.1:1234", "node0": ...} of the metrics."""
        text = self.await_file("endpoints")
        return dict(line.split("=", 1) for line in text.split() if "=" in line)
