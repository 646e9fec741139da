"""deploy/slurm under a real Slurm of two machines (tests/start/slurm_fixture.py)."""

import os
import pty
import subprocess
import tempfile
import time
import unittest

import harness
import slurm_fixture

REASON = slurm_fixture.available()
RECIPES = os.path.join(harness.ROOT, "deploy/slurm")
WHERE = os.path.join(harness.ROOT, "tests/programs/where.py")


@unittest.skipIf(REASON, REASON)
class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Homes that are not shared: the recipe's token must do.
        cls.slurm = slurm_fixture.Slurm(binds=[[("home.n0", "/srv")], [("home.n1", "/srv")]])
        cls.slurm.__enter__()
        cls.addClassCleanup(cls.slurm.__exit__, None, None, None)

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="job", dir=self.slurm.dir)
        os.chmod(self.dir, 0o777)
        self.environment = {"HOME": "/srv", "SHELL": "/bin/sh", "MAYPOLE_START_TIMEOUT": "20"}

    def check_nothing_left(self):
        harness.wait_until(lambda: not self.slurm.processes(), 10,
                           "the machines to be empty, not %s" % self.slurm.processes())

    def test_the_batch_script(self):
        command = ["sbatch", "--parsable", "--chdir", self.dir, os.path.join(RECIPES, "train.sbatch"),
                   harness.PYTHON, WHERE, self.dir]
        done = self.slurm.run(command, env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        number = done.stdout.strip()
        harness.wait_until(lambda: self.slurm.run(["squeue", "-h"]).stdout == "", 40, "the batch job to end")
        with open(os.path.join(self.dir, "maypole-%s.out" % number), encoding="utf-8") as f:
            lines = sorted(f.read().splitlines())
        self.assertEqual(lines, ["rank %d of 4: local %d of 2, node %d of 2: sum 10" % (r, r % 2, r // 2)
                                 for r in range(4)])
        print("\n".join(lines))
        self.check_nothing_left()

    def test_a_shell_on_a_node(self):
        typed = "maypolerun -np 2 %s %s\n%s %s\nexit\n" % (harness.PYTHON, WHERE, harness.PYTHON, WHERE)
        ours, theirs = pty.openpty()
        process = self.slurm.start([os.path.join(RECIPES, "interactive.sh"), "2", "--nodelist=n1"],
                                   env=self.environment, stdin=theirs, stdout=theirs, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        os.close(theirs)
        os.write(ours, typed.encode())
        printed = self.read_all(ours)
        self.assertEqual(process.wait(timeout=10), 0, printed)
        for line in ("[0]<stdout>:rank 0 of 2: local 0 of 2, node 0 of 1: sum 3",
                     "[1]<stdout>:rank 1 of 2: local 1 of 2, node 0 of 1: sum 3",
                     "rank 0 of 1: local 0 of 1, node 0 of 1: sum 1"):
            self.assertIn(line, printed)
        print(printed)
        self.check_nothing_left()

    def read_all(self, terminal):
        """What is printed until the last process has closed the terminal."""
        os.set_blocking(terminal, False)
        printed = b""
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            try:
                data = os.read(terminal, 4096)
            except BlockingIOError:
                time.sleep(0.02)
                continue
            except OSError:
                break
            printed += data
        os.close(terminal)
        return printed.decode(errors="replace")


if __name__ == "__main__":
    unittest.main()
