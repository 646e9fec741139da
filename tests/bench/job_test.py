"""The bench as a job: run.py's command, real daemons, ranks on one and two nodes."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

import run

# The repository's tree with built files.
ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"])
BENCH = os.path.join(ROOT, "tests", "bench", "allreduce_bench")
PROGRAM_DIRS = ["client/launcher", "coordinator", "worker"]
SIZES = ["--sizes=4,1KiB,4MiB", "--rounds=2", "--noresnet"]
LABELS = ["4 B", "1 KiB", "4 MiB"]
RESNET = ["--sizes=", "--rounds=2"]


class CommandTest(unittest.TestCase):

    def test_own_options_and_the_others_are_told_apart(self):
        own, others = run.parse(["--np", "4", "--sizes=4,8", "--nodes=2",
                                 "--max-bytes", "1MiB", "--noresnet"])
        self.assertEqual(others, ["--sizes=4,8", "--noresnet",
                                  "--max_bytes=1MiB"])
        self.assertEqual(run.job(own, others)[:7],
                         ["maypolerun", "-np", "4", "--nodes", "2",
                          "--no-prefix", "--"])
        own, others = run.parse(["--python"])
        self.assertEqual(run.job(own, others)[-1],
                         os.path.join(run.HERE, "allreduce_bench.py"))

    def test_machine(self):
        self.assertRegex(
            run.machine(),
            r"^machine: \d+ cores, .+, \d+\.\d GiB, Linux .+, \d{4}-\d\d-\d\d ")


class JobTest(unittest.TestCase):

    def setUp(self):
        # Short: unix sockets lie in here.
        self.dir = tempfile.mkdtemp(prefix="mpb", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)

    def environment(self):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith("MAYPOLE_")}
        dirs = [os.path.join(ROOT, d) for d in PROGRAM_DIRS]
        env["PATH"] = os.pathsep.join(dirs + [env.get("PATH", "/usr/bin:/bin")])
        env["PYTHONPATH"] = os.path.join(ROOT, "client", "python")
        env["MAYPOLE_LIBRARY"] = os.path.join(ROOT, "client", "libmaypole.so")
        env["TMPDIR"] = self.dir
        return env

    def measure(self, options, labels):
        path = os.path.join(self.dir, "result.json")
        own, others = run.parse(options + ["--json=" + path])
        command = run.job(own, others)
        if not own.python:
            command[command.index(run.BINARY)] = BENCH
        # If it hangs, timeout ends maypolerun, which ends all it has started.
        result = subprocess.run(["timeout", "100"] + command,
                                env=self.environment(), text=True,
                                stdin=subprocess.DEVNULL, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(path, encoding="utf-8") as f:
            found = json.load(f)
        self.assertEqual((found["ranks"], found["nodes"]), (own.np, own.nodes))
        self.assertEqual([c["label"] for c in found["cases"]], labels)
        self.assertEqual(len(result.stdout.splitlines()), 2 + len(labels),
                         result.stdout)

    def test_cpp_on_one_node(self):
        self.measure(["--np=2"] + SIZES, LABELS)

    def test_cpp_on_two_nodes(self):
        self.measure(["--np=3", "--nodes=2"] + SIZES, LABELS)

    def test_python_on_two_nodes(self):
        self.measure(["--np=2", "--nodes=2", "--python"] + SIZES, LABELS)

    def test_resnet_submits_161_new_names_at_once(self):
        for options in (["--np=2"], ["--np=2", "--nodes=2"],
                        ["--np=2", "--nodes=2", "--python"]):
            with self.subTest(options):
                self.measure(options + RESNET, ["ResNet-50"])


if __name__ == "__main__":
    unittest.main()
