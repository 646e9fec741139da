"""The C++ and the Python program have the same cases; each runs alone as one rank."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

# The repository's tree with built files.
HERE = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"],
                    "tests", "bench")
PROGRAMS = {
    "C++": [os.path.join(HERE, "allreduce_bench")],
    "maypole.torch": [sys.executable, os.path.join(HERE, "allreduce_bench.py")],
}
SMALL = ["--sizes=4,1KiB,1MiB", "--rounds=3"]


def run(program, *arguments):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("MAYPOLE_") or k == "MAYPOLE_LIBRARY"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run(PROGRAMS[program] + list(arguments), env=env,
                          stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=120)


class TwinTest(unittest.TestCase):

    def both(self, *arguments):
        results = [run(program, *arguments) for program in PROGRAMS]
        for result in results:
            self.assertEqual(result.stderr, "")
            self.assertEqual(result.returncode, 0)
        return [result.stdout for result in results]

    def test_they_measure_the_same(self):
        cpp, python = self.both("--list")
        self.assertEqual(cpp, python)
        self.assertIn("ResNet-50: 102228128 bytes in 161 tensors, ", cpp)
        self.assertIn("  bench.resnet50.conv1.weight [64, 3, 7, 7]\n", cpp)
        self.assertIn("256 MiB: 268435456 bytes in 1 tensors, 2 + 5 rounds", cpp)
        cpp, python = self.both("--list", "--max_bytes=1MiB", "--rounds=30")
        self.assertEqual(cpp, python)
        self.assertNotIn("ResNet", cpp)
        cpp, python = self.both("--list", "--sizes=12,6KiB", "--noresnet")
        self.assertEqual(cpp, python)

    def test_tables_and_json_have_one_form(self):
        for program in PROGRAMS:
            with self.subTest(program), tempfile.TemporaryDirectory() as d:
                path = os.path.join(d, "result.json")
                result = run(program, *SMALL, "--json=" + path)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                lines = result.stdout.splitlines()
                self.assertIn(program + " API, 1 ranks on 1 nodes", lines[0])
                self.assertEqual([line[:10].strip() for line in lines[1:]],
                                 ["case", "4 B", "1 KiB", "1 MiB", "ResNet-50"])
                with open(path) as f:
                    found = json.load(f)
            self.assertEqual((found["api"], found["ranks"], found["nodes"]),
                             (program, 1, 1))
            self.assertEqual([c["bytes"] for c in found["cases"]],
                             [4, 1024, 1 << 20, 102228128])
            self.assertEqual([c["tensors"] for c in found["cases"]],
                             [1, 1, 1, 161])
            for case in found["cases"]:
                self.assertEqual(len(case["times_us"]), 3)
                self.assertEqual(sorted(case["times_us"])[1], case["median_us"])

    def test_errors_are_one_line(self):
        for program in PROGRAMS:
            for arguments, expected in (
                (["--sizes=7"], "'7': a size must be a positive multiple of 4"),
                (["--max_bytes=1"], "no size is left to be measured"),
                (["--json=/nonexistent/x"], "/nonexistent/x"),
            ):
                result = run(program, *arguments)
                self.assertEqual(result.returncode, 1)
                self.assertIn(expected, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)


if __name__ == "__main__":
    unittest.main()
