"""Unusual environments in which a job still works, or ends with one line.

All on this machine, by maypolerun; each test is one environment.
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import unittest

import harness

ROOT_REASON = None if os.geteuid() == 0 else "mount namespaces need root"
MAYPOLERUN = os.path.join(harness.ROOT, harness.PROGRAMS[0])
PROGRAMS = os.path.join(harness.ROOT, "tests/programs")


class OddCase(unittest.TestCase):
    def check_job(self, np=4, nodes=2, **kwargs):
        """The job sums; returns its records and output."""
        kwargs.setdefault("program", "where.py")
        with harness.Job(np=np, nodes=nodes, **kwargs) as job:
            job.check_ok(60)
            records, output = job.records(), job.stdout()
        self.assertEqual([r["rank"] for r in records], list(range(np)))
        self.assertEqual({r["sum"] for r in records}, {np * (np + 1) / 2})
        return records, output

    def run_command(self, argv, env=None, **kwargs):
        return subprocess.run(argv, env=harness.environment(env), capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, **kwargs)

    def one_line(self, done, status, pattern):
        """Checks that it ended with this status and one line with this text."""
        self.assertEqual(done.returncode, status, done.stderr)
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertRegex(lines[0], pattern)
        print(lines[0])

    def directory(self, **kwargs):
        path = tempfile.mkdtemp(dir="/tmp", **kwargs)
        self.addCleanup(shutil.rmtree, path, True)
        return path


class EnvironmentTest(OddCase):
    def test_proxies(self):
        nobody = "http://127.0.0.1:9"
        names = [n + "_proxy" for n in ("http", "https", "all", "grpc", "no_grpc")]
        env = {n: nobody for n in names}
        env.update({n.upper(): nobody for n in names})
        env.update({"no_proxy": "", "NO_PROXY": ""})
        self.check_job(env=env)

    def test_home_that_is_not_there(self):
        self.check_job(env={"HOME": "/nonexistent", "XDG_RUNTIME_DIR": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"})

    def test_directory_for_sockets_that_is_too_long(self):
        outer = self.directory(prefix="mpo")
        long = os.path.join(outer, "d" * 120)
        os.mkdir(long)
        self.check_job(env={"TMPDIR": long})
        self.assertEqual(os.listdir(long), [])

    def test_paths_with_spaces(self):
        outer = self.directory(prefix="mp ü ")
        root = os.path.join(outer, "my files")
        os.rename(harness.public_copy(), root)
        temporary = os.path.join(outer, "for sockets")
        os.mkdir(temporary)
        self.check_job(root=root, env={"TMPDIR": temporary, "HOME": outer})
        self.assertEqual(os.listdir(temporary), [])

    def test_no_locale(self):
        self.check_job(env={"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"})

    @unittest.skipIf(ROOT_REASON, ROOT_REASON)
    def test_small_dev_shm(self):
        self.check_job(prefix=["unshare", "--mount", "sh", "-c",
                               'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"', "sh"])

    @unittest.skipIf(ROOT_REASON, ROOT_REASON)
    def test_home_where_no_socket_can_be_made(self):
        # No file can be created there.
        home = self.directory(prefix="mph")
        self.check_job(env={"HOME": home, "XDG_RUNTIME_DIR": home},
                       prefix=["unshare", "--mount", "sh", "-c",
                               'mount -t tmpfs -o ro none "$0" && cd "$0" && exec "$@"', home])

    def test_few_descriptors(self):
        self.check_job(np=8, prefix=["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh"])

    def test_one_core_by_affinity(self):
        core = min(os.sched_getaffinity(0))
        self.check_job(prefix=["taskset", "-c", str(core)])

    @unittest.skipIf(ROOT_REASON, ROOT_REASON)
    def test_one_core_by_control_group(self):
        group = Quota(50)
        if group.reason:
            self.skipTest(group.reason)
        self.addCleanup(group.remove)
        self.check_job(prefix=group.wrap())


class Quota:
    """A control group (version 1 or 2) that may use a given percentage of a core."""

    V1, V2 = "/sys/fs/cgroup/cpu", "/sys/fs/cgroup"

    def __init__(self, percent):
        old = os.path.isdir(self.V1)
        self.path = os.path.join(self.V1 if old else self.V2, "mpq%d" % os.getpid())
        self.reason = None
        try:
            os.mkdir(self.path)
            name, value = ("cpu.cfs_quota_us", "%d") if old else ("cpu.max", "%d 100000")
            with open(os.path.join(self.path, name), "w") as f:
                f.write(value % (percent * 1000))
        except OSError as error:
            self.remove()
            self.reason = "cannot make a control group: %s" % error

    def wrap(self):
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', os.path.join(self.path, "cgroup.procs")]

    def remove(self):
        def gone():
            try:
                os.rmdir(self.path)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            return True

        harness.wait_until(gone, 5, "the control group to be empty")


class CommandTest(OddCase):
    def test_package(self):
        at = self.directory(prefix="mpp")
        os.mkdir(os.path.join(at, "training"))
        shutil.copy(os.path.join(PROGRAMS, "where.py"), os.path.join(at, "training", "__main__.py"))
        path = os.pathsep.join([at, harness.environment()["PYTHONPATH"]])
        self.check_job(command=[harness.PYTHON, "-m", "training"], env={"PYTHONPATH": path})

    def test_three_ranks_on_two_nodes(self):
        records, output = self.check_job(np=3, nodes=2)
        places = [(r["local_rank"], r["local_size"], r["cross_rank"], r["cross_size"]) for r in records]
        self.assertEqual(places, [(0, 2, 0, 2), (1, 2, 0, 2), (0, 1, 1, 2)])
        self.assertIn("[2]<stdout>:rank 2 of 3: local 0 of 1, node 1 of 2: sum 6", output)

    def test_too_few_slots(self):
        self.one_line(self.run_command([MAYPOLERUN, "-np", "4", "-H", "localhost:2", "true"]), 2,
                      r"^maypolerun: .*2 slot.*-np is 4")

    def test_more_nodes_than_ranks(self):
        self.one_line(self.run_command([MAYPOLERUN, "-np", "1", "--nodes", "2", "true"]), 2, r"^maypolerun: .*nodes")

    def test_missing_command(self):
        done = self.run_command([MAYPOLERUN, "-np", "2", "no-such-program"])
        self.one_line(done, 127, r"^maypolerun: .*no-such-program.*not found")

    def test_command_that_is_no_program(self):
        path = os.path.join(self.directory(prefix="mpx"), "text")
        with open(path, "w") as f:
            f.write("not a program\n")
        self.one_line(self.run_command([MAYPOLERUN, "-np", "2", path]), 126, r"^maypolerun: .*%s" % re.escape(path))

    @unittest.skipIf(ROOT_REASON, ROOT_REASON)
    def test_ranks_of_another_user(self):
        root = harness.public_copy()
        self.addCleanup(shutil.rmtree, root)
        done = subprocess.run(
            [os.path.join(root, harness.PROGRAMS[0]), "-np", "2", "setpriv", "--reuid=65534", "--regid=65534",
             "--clear-groups", harness.PYTHON, os.path.join(root, "tests/programs/where.py")],
            env=harness.environment(root=root), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, cwd="/")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"HorovodInternalError: cannot connect to .*: Permission denied; that agent serves its "
                                      "own user only: start maypolerun as the user of the ranks, or maypole-worker as root")

    def test_command_that_knows_nothing_of_maypole(self):
        done = self.run_command([MAYPOLERUN, "-np", "2", "sh", "-c", "echo $MAYPOLE_RANK of $MAYPOLE_SIZE"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0]<stdout>:0 of 2", "[1]<stdout>:1 of 2"])


MPIRUN_REASON = None if shutil.which("mpirun", path=harness.environment()["PATH"]) else "Open MPI is not installed"


@unittest.skipIf(MPIRUN_REASON, MPIRUN_REASON)
class MeetingTest(OddCase):
    """The bootstrap directory of ranks that mpirun has started."""

    def setUp(self):
        self.outer = self.directory(prefix="mp ü ")
        os.chmod(self.outer, 0o755)
        self.root = os.path.join(self.outer, "my files")
        os.rename(harness.public_copy(), self.root)
        self.meeting = os.path.join(self.outer, "meet here")
        os.mkdir(self.meeting)
        os.chmod(self.meeting, 0o1777)

    def mpirun(self, env=None, prefix=()):
        env = dict({"MAYPOLE_RUNTIME_DIR": self.meeting, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "MAYPOLE_START_TIMEOUT": "20"}, **(env or {}))
        program = os.path.join(self.root, "tests/programs/where.py")
        return subprocess.run([*prefix, "mpirun", "--oversubscribe", "-np", "3", harness.PYTHON, program], cwd="/",
                              env=harness.environment(env, self.root), capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)

    def check(self, env=None, prefix=()):
        done = self.mpirun(env, prefix)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(re.findall("rank . of 3: local . of 3, node 0 of 1: sum 6", done.stdout)), 3, done.stdout)
        harness.wait_until(lambda: not os.listdir(self.meeting), 10, "the job to leave nothing")

    def test_paths_with_spaces(self):
        self.check()

    def test_no_home_and_a_proxy(self):
        self.check({"HOME": "/nonexistent", "http_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9"})

    @unittest.skipIf(ROOT_REASON, ROOT_REASON)
    def test_ordinary_user(self):
        self.check({"HOME": "/nonexistent"}, ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])

    def test_few_descriptors_on_one_core(self):
        core = min(os.sched_getaffinity(0))
        self.check(prefix=["sh", "-c", 'ulimit -n 256 && exec taskset -c "$0" "$@"', str(core)])

    def error(self, directory):
        done = self.mpirun({"MAYPOLE_RUNTIME_DIR": directory})
        self.assertEqual(done.returncode, 1)
        line = next(line for line in done.stderr.splitlines() if "Error: " in line)
        print(line)
        return line

    def test_directory_that_is_not_there(self):
        self.assertRegex(self.error("/nonexistent"),
                         "cannot make /nonexistent/maypole-.*: No such file or directory; set MAYPOLE_RUNTIME_DIR to a "
                         "directory of this machine that you may write to")

    def test_directory_whose_name_is_too_long(self):
        self.assertRegex(self.error("/tmp/" + "d" * 120),
                         "MAYPOLE_RUNTIME_DIR=/tmp/d* is too long for the path of a socket: choose a shorter one")


class PortsTest(OddCase):
    def taken(self):
        holder = socket.socket()
        self.addCleanup(holder.close)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        return "127.0.0.1:%d" % holder.getsockname()[1]

    def check(self, program, flags, pattern):
        self.one_line(self.run_command([os.path.join(harness.ROOT, program), *flags]), 1, pattern)

    def test_coordinator(self):
        taken = self.taken()
        self.check("coordinator/maypole-coordinator", ["--listen=" + taken],
                   r"cannot listen.*%s.*in use" % re.escape(taken))

    def test_metrics_of_the_coordinator(self):
        taken = self.taken()
        self.check("coordinator/maypole-coordinator", ["--metrics=" + taken], r"metrics.*%s.*in use" % re.escape(taken))

    def test_metrics_of_the_agent(self):
        taken = self.taken()
        self.check("worker/maypole-worker",
                   ["--metrics=" + taken, "--coordinator=127.0.0.1:1",
                    "--socket=" + os.path.join(self.directory(prefix="mps"), "s")],
                   r"metrics.*%s.*in use" % re.escape(taken))

    def test_socket_of_another_agent(self):
        path = os.path.join(self.directory(prefix="mps"), "s")
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(holder.close)
        holder.bind(path)
        holder.listen()
        self.check("worker/maypole-worker", ["--metrics=", "--coordinator=127.0.0.1:1", "--socket=" + path],
                   r"another agent already listens at %s \(pid %d, uid %d\); use it, or end it, or give this one another --socket" %
                   (re.escape(path), os.getpid(), os.getuid()))


def pythons():
    """Pythons other than the system's: those of pyenv, or on PATH."""
    found = {}
    places = os.environ.get("PATH", "").split(os.pathsep)
    versions = os.path.expanduser("~/.pyenv/versions")
    if os.path.isdir(versions):
        places += [os.path.join(versions, v, "bin") for v in sorted(os.listdir(versions))]
    for place in places:
        path = os.path.realpath(os.path.join(place, "python3"))
        if os.access(path, os.X_OK) and "shims" not in path:
            asked = subprocess.run([path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                                   capture_output=True, text=True)
            if asked.returncode == 0:
                found[path] = tuple(int(n) for n in asked.stdout.split("."))
    return found


class PythonsTest(OddCase):
    """One library and package for every CPython from 3.9 on, without torch."""

    def test_other_pythons(self):
        supported = {path: v for path, v in pythons().items() if v >= (3, 9)}
        self.assertTrue(supported)
        program = os.path.join(PROGRAMS, "where.py")
        for path, version in sorted(supported.items(), key=lambda item: item[1]):
            with self.subTest(python=path):
                records, output = self.check_job(np=2, nodes=1, command=[path, program])
                self.assertEqual({tuple(int(n) for n in r["python"].split(".")[:2]) for r in records}, {version})
                print(path, output.splitlines()[0])

    def test_virtual_environment(self):
        at = os.path.join(self.directory(prefix="mpv"), "env")
        made = subprocess.run([harness.PYTHON, "-m", "venv", "--without-pip", at], capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest("no venv: " + made.stderr)
        program = os.path.join(PROGRAMS, "where.py")
        self.check_job(np=2, nodes=1, command=[os.path.join(at, "bin", "python3"), program])


if __name__ == "__main__":
    unittest.main()
