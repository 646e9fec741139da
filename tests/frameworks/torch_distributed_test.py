"""torch.distributed on Maypole: every operation, errors and launchers, with the newest torch of PyPI.

With --long also by torchrun, on three ranks and two nodes, more errors, and the wheel, whose backend torch finds itself.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness
import installed
import pypi_torch

DIRECTORY = tempfile.mkdtemp(prefix="mpd", dir="/tmp")
PROGRAMS = os.path.join(harness.ROOT, "tests", "programs", "torch_distributed")
LONG = "--long" in sys.argv
# The least that collectives.py compares.
OPERATIONS = 1000


def setUpModule():
    unittest.addModuleCleanup(shutil.rmtree, DIRECTORY)
    os.chmod(DIRECTORY, 0o755)
    harness.PYTHON = pypi_torch.environment(os.path.join(DIRECTORY, "env"))


class TorchDistributedTest(unittest.TestCase):
    def run_program(self, np, nodes, program, args=()):
        with harness.Job(np=np, nodes=nodes, program="torch_distributed/" + program, args=args) as job:
            job.check_ok(300)
            return job.stdout()

    def check_collectives(self, out):
        equal = [line for line in out.splitlines() if "equal: " in line]
        self.assertEqual(len(equal), 1, out)
        self.assertGreaterEqual(int(equal[0].split("equal: ")[1].split()[0]), OPERATIONS)

    def test_every_operation_equals_gloos(self):
        self.check_collectives(self.run_program(2, 1, "collectives.py"))

    @unittest.skipUnless(LONG, "with --all")
    def test_started_by_torchrun(self):
        env = harness.environment({"MAYPOLE_RUNTIME_DIR": DIRECTORY, "TMPDIR": DIRECTORY})
        done = subprocess.run([harness.PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
                               "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
                               os.path.join(PROGRAMS, "collectives.py")], env=env, cwd=DIRECTORY, capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.check_collectives(done.stdout)

    @unittest.skipUnless(LONG, "with --all")
    def test_the_same_of_three_ranks_and_over_nodes(self):
        for np, nodes in ((3, 1), (4, 2), (3, 2)):
            with self.subTest(np=np, nodes=nodes):
                self.check_collectives(self.run_program(np, nodes, "collectives.py"))

    @unittest.skipUnless(LONG, "with --all")
    def test_torch_finds_the_backend_of_the_wheel(self):
        path = os.path.join(DIRECTORY, "wheel")
        pypi_torch.environment(path)
        installed.Environment(path).pip("install", "--no-index", "--no-deps", installed.make_wheel(DIRECTORY))
        code = ("import sys, torch, torch.distributed as dist; dist.init_process_group('maypole'); "
                "tensor = torch.ones(3); dist.all_reduce(tensor); print('sum', tensor.tolist()); "
                "dist.destroy_process_group()")
        done = subprocess.run([path + "/bin/maypolerun", "-np", "2", path + "/bin/python", "-c", code], env={}, cwd="/",
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("sum [2.0, 2.0, 2.0]"), 2, done.stdout)
        # It costs who only imports torch nothing.
        done = subprocess.run([path + "/bin/python", "-c", "import torch, sys; print('maypole' in sys.modules)"], env={},
                              cwd="/", capture_output=True, text=True, timeout=120)
        self.assertEqual(done.stdout.strip(), "False", done.stderr)

    # --- Errors ---------------------------------------------------------------

    def errors(self, what, np=3):
        with harness.Job(np=np, program="torch_distributed/errors.py", args=[what]) as job:
            job.wait(120)
            return [job.record(rank) for rank in range(np - 1 if what == "death" else np)]

    def test_calls_that_differ_are_named(self):
        for record in self.errors("mismatch"):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertIn("allreduce 'world#1'", record["text"])
            self.assertIn("broadcast 'world#1'", record["text"])

    @unittest.skipUnless(LONG, "with --all")
    def test_shapes_that_differ_are_named(self):
        for record in self.errors("shapes"):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertIn("all_reduce, call 1 of group 'world'", record["text"])
            self.assertRegex(record["text"], r"\[4\].*\[5\]|\[5\].*\[4\]")

    @unittest.skipUnless(LONG, "with --all")
    def test_a_timeout_says_who_has_not_come(self):
        first, second, last = self.errors("timeout")
        for record in (first, second):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertIn("all_reduce, call 1 of group 'world' has not ended in 2 s", record["text"])
            self.assertRegex(record["text"], r"rank 2\b.*not submitted")
            self.assertGreaterEqual(record["seconds"], 2)
        self.assertEqual(last["type"], "")

    @unittest.skipUnless(LONG, "with --all")
    def test_a_death_is_named_at_once(self):
        for record in self.errors("death"):
            self.assertEqual(record["type"], "DistBackendError")
            self.assertRegex(record["text"], r"rank 2\b.*(SIGKILL|killed|died|lost)")
            self.assertLess(record["seconds"], 5)


if __name__ == "__main__":
    unittest.main(argv=[arg for arg in sys.argv if arg != "--long"])
