"""Jobs started by a real Slurm (slurm_fixture.py): srun, sbatch, salloc."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import termios
import time
import unittest

import harness
import machines
import slurm_fixture

REASON = slurm_fixture.available()
WHERE = os.path.join(harness.ROOT, "tests/programs/where.py")


def become_terminals_session():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Job:
    """A directory that both machines see, and the files of where.py in it."""

    def __init__(self, slurm):
        self.dir = tempfile.mkdtemp(prefix="job", dir=slurm.dir)
        os.chmod(self.dir, 0o777)
        self.command = [harness.PYTHON, WHERE, self.dir]

    def records(self, size):
        found = []
        for rank in range(size):
            with open(os.path.join(self.dir, "rank.%d.json" % rank)) as f:
                found.append(json.load(f))
        return found

    def here(self, rank):
        return os.path.exists(os.path.join(self.dir, "here.%d" % rank))

    def places(self, size):
        """[(host, local rank, local size, node, nodes)] by rank."""
        for rank, r in enumerate(self.records(size)):
            assert (r["rank"], r["size"], r["sum"]) == (rank, size, size * (size + 1) / 2), r
        return [(r["host"], r["local_rank"], r["local_size"], r["cross_rank"], r["cross_size"])
                for r in self.records(size)]


class SlurmCase(unittest.TestCase):
    MACHINES = {}

    @classmethod
    def setUpClass(cls):
        cls.slurm = slurm_fixture.Slurm(**cls.MACHINES)
        cls.slurm.__enter__()
        cls.addClassCleanup(cls.slurm.__exit__, None, None, None)
        cls.home = os.path.join(cls.slurm.dir, "home")
        os.mkdir(cls.home, 0o700)

    def environment(self, extra=None):
        env = {"HOME": self.home, "SHELL": "/bin/sh", "MAYPOLE_START_TIMEOUT": "20"}
        env.update(extra or {})
        return env

    def run_ok(self, argv, env=None, **kwargs):
        done = self.slurm.run(argv, env=self.environment(env), **kwargs)
        self.assertEqual(done.returncode, 0, "%s\n%s\n%s" % (argv, done.stdout, done.stderr))
        return done

    def check_nothing_left(self):
        harness.wait_until(lambda: not self.slurm.processes(), 10,
                           "the machines to be empty, not %s" % self.slurm.processes())
        for machine in self.slurm.machines:
            left = machine.run(["sh", "-c", "ls -d /tmp/maypole* 2>/dev/null"]).stdout
            self.assertEqual(left, "", machine.name)


@unittest.skipIf(REASON, REASON)
class SrunTest(SlurmCase):
    def test_slurm_starts_tasks_on_both_machines(self):
        done = self.run_ok(["srun", "-N2", "-n4", "--ntasks-per-node=2", "hostname"])
        self.assertEqual(sorted(done.stdout.split()), ["n0", "n0", "n1", "n1"])

    def test_one_node(self):
        job = Job(self.slurm)
        self.run_ok(["srun", "-N1", "-n3"] + job.command)
        self.assertEqual(job.places(3), [("n0", i, 3, 0, 1) for i in range(3)])
        self.check_nothing_left()

    def test_two_nodes(self):
        job = Job(self.slurm)
        done = self.run_ok(["srun", "-N2", "-n4", "--ntasks-per-node=2"] + job.command)
        self.assertEqual(job.places(4), [("n0", 0, 2, 0, 2), ("n0", 1, 2, 0, 2), ("n1", 0, 2, 1, 2), ("n1", 1, 2, 1, 2)])
        self.check_nothing_left()
        print(done.stdout)

    def test_nodes_of_different_sizes(self):
        job = Job(self.slurm)
        self.run_ok(["srun", "-N2", "-n4", "-m", "block"] + job.command)
        places = job.places(4)
        self.assertEqual([p[0] for p in places], ["n0", "n0", "n0", "n1"])
        self.assertEqual([p[1:3] for p in places], [(0, 3), (1, 3), (2, 3), (0, 1)])
        self.check_nothing_left()

    def test_cyclic(self):
        job = Job(self.slurm)
        self.run_ok(["srun", "-N2", "-n4", "--ntasks-per-node=2", "-m", "cyclic"] + job.command)
        self.assertEqual(job.places(4), [("n0", 0, 2, 0, 2), ("n1", 0, 2, 1, 2), ("n0", 1, 2, 0, 2), ("n1", 1, 2, 1, 2)])
        self.check_nothing_left()

    def test_pmix(self):
        if not self.slurm.has_pmix():
            self.skipTest("this Slurm has no PMIx")
        job = Job(self.slurm)
        # The home is not used here: PMIx carries the bootstrap info.
        self.run_ok(["srun", "--mpi=pmix", "-N2", "-n4", "--ntasks-per-node=2"] + job.command,
                    env={"HOME": "/nonexistent"})
        self.assertEqual([p[0] for p in job.places(4)], ["n0", "n0", "n1", "n1"])
        self.check_nothing_left()

    def test_two_steps_at_once_do_not_meet(self):
        jobs = [Job(self.slurm), Job(self.slurm)]
        steps = " & ".join("srun --exact -N2 -n2 --ntasks-per-node=1 %s" % " ".join(j.command) for j in jobs)
        self.run_ok(["salloc", "-N2", "-n4", "sh", "-c", steps + " & wait"])
        for job in jobs:
            self.assertEqual([p[0] for p in job.places(2)], ["n0", "n1"])
        self.check_nothing_left()

    def test_a_step_that_is_started_again(self):
        for _ in range(2):
            job = Job(self.slurm)
            self.run_ok(["srun", "-N2", "-n2"] + job.command)
            self.assertEqual(len(job.places(2)), 2)
        self.check_nothing_left()

    def test_port_in_use(self):
        # That of slurmctld.
        done = self.slurm.run(["srun", "-N2", "-n2"] + Job(self.slurm).command,
                              env=self.environment({"MAYPOLE_COORDINATOR_PORT": "6817"}))
        self.assertNotEqual(done.returncode, 0)
        lines = [line for line in done.stderr.splitlines() if "6817" in line]
        self.assertTrue(lines, done.stderr)
        self.assertTrue(any("in use" in line for line in lines), done.stderr)
        print(lines[0])
        self.check_nothing_left()

    def test_ordinary_user(self):
        root = os.path.join(self.slurm.dir, "copy")
        os.rename(harness.public_copy(), root)
        home = os.path.join(self.slurm.dir, "home of another")
        os.mkdir(home)
        os.chown(home, 65534, 65534)
        job = Job(self.slurm)
        done = self.slurm.machines[0].run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "srun", "-N2", "-n4",
             "--ntasks-per-node=2", harness.PYTHON, os.path.join(root, "tests/programs/where.py"), job.dir],
            env=self.slurm.environment({"HOME": home}, root=root), cwd="/")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(job.places(4)), 4)
        self.check_nothing_left()


@unittest.skipIf(REASON, REASON)
class SizeOneTest(SlurmCase):
    """Without a step of several tasks, a process is a job of one rank, at once."""

    def check_alone(self, job):
        (place,) = job.places(1)
        self.assertEqual(place[1:], (0, 1, 0, 1))
        self.assertLess(job.records(1)[0]["init_seconds"], 1)
        self.check_nothing_left()

    def in_a_terminal(self, argv, typed):
        """The output of the command on a terminal where `typed` is typed."""
        ours, theirs = pty.openpty()
        process = self.slurm.start(argv, env=self.environment(), stdin=theirs, stdout=theirs, stderr=theirs,
                                   preexec_fn=become_terminals_session)
        os.close(theirs)
        os.write(ours, typed.encode())
        printed = b""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the last process has closed it
                break
            if not data:
                break
            printed += data
        os.close(ours)
        self.assertEqual(process.wait(timeout=10), 0, printed.decode())
        return printed.decode()

    def test_interactive_shell(self):
        job = Job(self.slurm)
        printed = self.in_a_terminal(["srun", "-n2", "--pty", "/bin/sh"], " ".join(job.command) + "\nexit\n")
        self.assertIn("rank 0 of 1: local 0 of 1, node 0 of 1: sum 1", printed)
        self.check_alone(job)

    def test_interactive_python(self):
        job = Job(self.slurm)
        self.in_a_terminal(["srun", "--pty"] + job.command, "")
        self.check_alone(job)

    def test_one_task(self):
        job = Job(self.slurm)
        self.run_ok(["srun", "-n1"] + job.command)
        self.check_alone(job)

    def test_shell_of_salloc(self):
        job = Job(self.slurm)
        self.in_a_terminal(["salloc", "-N2", "-n4"], " ".join(job.command) + "\nexit\n")
        self.check_alone(job)

    def test_command_of_salloc(self):
        job = Job(self.slurm)
        self.run_ok(["salloc", "-N2", "-n4"] + job.command)
        self.check_alone(job)

    def run_batch(self, job, command):
        script = os.path.join(job.dir, "script")
        with open(script, "w") as f:
            f.write("#!/bin/sh\n%s\n" % command)
        self.run_ok(["sbatch", "-N2", "-n4", "-o", os.path.join(job.dir, "out"), script])
        # (sbatch --wait looks every ten seconds.)
        harness.wait_until(lambda: self.run_ok(["squeue", "-h"]).stdout == "", 30, "the batch job to end")

    def test_batch_script(self):
        job = Job(self.slurm)
        self.run_batch(job, " ".join(job.command))
        self.check_alone(job)

    def test_step_of_a_batch_script(self):
        job = Job(self.slurm)
        self.run_batch(job, "srun " + " ".join(job.command))
        self.assertEqual(len(job.places(4)), 4)
        self.check_nothing_left()


@unittest.skipIf(REASON, REASON)
class EndTest(SlurmCase):
    def start(self, *flags):
        self.job = Job(self.slurm)
        process = self.slurm.start(["srun", "-N2", "-n4", "--ntasks-per-node=2", *flags] + self.job.command + ["go"],
                                   env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        harness.wait_until(lambda: all(self.job.here(r) for r in range(4)) or process.poll() is not None, 30,
                           "all ranks to be there")
        self.assertIsNone(process.poll(), process.stdout.read() if process.poll() is not None else "")
        return process

    def rank_pid(self, name, rank):
        """By the machine's process table: `here.N` has the pid in its namespace."""
        machine = self.slurm.machines[int(name[1:])]
        with open(os.path.join(self.job.dir, "here.%d" % rank)) as f:
            inner = f.read()
        for pid, argv in machine.processes().items():
            if WHERE in argv:
                with open("/proc/%d/status" % pid) as f:
                    if re.search(r"^NSpid:.*\t%s$" % inner, f.read(), re.M):
                        return pid
        raise AssertionError("rank %d is not there" % rank)

    def test_a_task_is_killed(self):
        process = self.start("--kill-on-bad-exit=0")
        os.kill(self.rank_pid("n1", 3), signal.SIGKILL)
        with open(os.path.join(self.job.dir, "go"), "w"):
            pass
        output, _ = process.communicate(timeout=30)
        self.assertNotEqual(process.returncode, 0)
        errors = [line for line in output.splitlines() if "HorovodInternalError" in line]
        self.assertEqual(len(errors), 3, output)
        for line in errors:
            self.assertRegex(line, r"rank 3 .*n1")
        print(errors[0])
        self.check_nothing_left()

    def test_scancel(self):
        process = self.start()
        self.run_ok(["scancel", "--state=RUNNING"])
        process.communicate(timeout=30)
        self.check_nothing_left()

    def test_ctrl_c(self):
        process = self.start()
        (srun,) = [p for p, (parent, argv) in harness.processes().items()
                   if parent == process.pid and argv[0] == "srun"]
        os.kill(srun, signal.SIGINT)
        time.sleep(0.3)
        os.kill(srun, signal.SIGINT)  # srun asks for the second within a second
        process.communicate(timeout=30)
        self.check_nothing_left()


@unittest.skipIf(REASON, REASON)
class HomesTest(SlurmCase):
    """Without PMIx the secret of a job comes from the user's home, or from the token."""

    # Each machine shows a directory of its own there.
    MACHINES = {"binds": [[("home.n0", "/srv")], [("home.n1", "/srv")]]}

    def run_in(self, home, env=None):
        self.job = Job(self.slurm)
        return self.slurm.run(["srun", "-N2", "-n4", "--ntasks-per-node=2"] + self.job.command,
                              env=self.environment(dict(env or {}, HOME=home, MAYPOLE_START_TIMEOUT="8")))

    def one_line(self, done):
        self.assertNotEqual(done.returncode, 0)
        lines = {line for line in done.stderr.splitlines() if "MAYPOLE_TOKEN" in line}
        self.assertTrue(lines, done.stderr)
        print("\n".join(sorted(lines)))
        self.check_nothing_left()

    def test_homes_that_are_not_shared(self):
        self.one_line(self.run_in("/srv"))

    def test_homes_that_are_not_shared_with_a_token(self):
        done = self.run_in("/srv", {"MAYPOLE_TOKEN": "some random text of this job"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.job.places(4)), 4)
        self.check_nothing_left()

    def test_no_home_at_all(self):
        self.one_line(self.run_in("/nonexistent"))


@unittest.skipIf(REASON, REASON)
class NamesTest(SlurmCase):
    """Each machine takes its own name for 127.0.1.1, as Debian's installer has it."""

    MACHINES = {"hosts": ["127.0.0.1 localhost\n127.0.1.1 n%d\n10.213.78.%d n%d\n" % (i, 2 - i, 1 - i)
                          for i in range(2)]}

    def test_two_nodes(self):
        job = Job(self.slurm)
        self.run_ok(["srun", "-N2", "-n4", "--ntasks-per-node=2"] + job.command)
        self.assertEqual([p[0] for p in job.places(4)], ["n0", "n0", "n1", "n1"])
        self.check_nothing_left()


MPIRUN_REASON = REASON or (None if shutil.which("mpirun", path=harness.environment()["PATH"]) else
                           "Open MPI is not installed")


@unittest.skipIf(MPIRUN_REASON, MPIRUN_REASON)
class MpirunTest(SlurmCase):
    """mpirun over two machines, which it reaches through Slurm."""

    def mpirun(self, *flags):
        job = Job(self.slurm)
        done = self.run_ok(["salloc", "-N2", "-n4", "--ntasks-per-node=2", "mpirun", *flags] + job.command,
                           {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "HOME": "/nonexistent"})
        self.assertNotIn("improperly", done.stderr)
        self.check_nothing_left()
        return job.places(4)

    def test_two_nodes(self):
        self.assertEqual(self.mpirun(), [("n0", 0, 2, 0, 2), ("n0", 1, 2, 0, 2), ("n1", 0, 2, 1, 2), ("n1", 1, 2, 1, 2)])

    def test_ranks_of_a_node_do_not_follow_each_other(self):
        self.assertEqual(self.mpirun("--map-by", "node"),
                         [("n0", 0, 2, 0, 2), ("n1", 0, 2, 1, 2), ("n0", 1, 2, 0, 2), ("n1", 1, 2, 1, 2)])


@unittest.skipIf(REASON, REASON)
class Ipv6Test(SlurmCase):
    MACHINES = {"addresses": [[a] for a in machines.V6]}

    def test_two_nodes(self):
        job = Job(self.slurm)
        self.run_ok(["srun", "-N2", "-n4", "--ntasks-per-node=2"] + job.command)
        self.assertEqual([p[0] for p in job.places(4)], ["n0", "n0", "n1", "n1"])
        self.check_nothing_left()


if __name__ == "__main__":
    unittest.main()
