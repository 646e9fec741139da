"""maypole.run() with real ranks: values, errors, output, the end. The calls are in tests/programs/run_function.py."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import harness

PROGRAM = os.path.join(harness.ROOT, "tests/programs/run_function.py")
SHIM = os.path.join(harness.ROOT, "client/python/horovod_shim")
FAKE_SSH = """#!/bin/sh
for a; do last="$a"; done
SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22" exec sh -c "$last"
"""


class RunFunctionTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpf", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.env = harness.environment({"TMPDIR": self.dir, "MAYPOLE_BIN": os.path.join(harness.ROOT, "client/launcher")})
        self.env.pop("XDG_RUNTIME_DIR", None)

    def start(self, *args):
        return subprocess.Popen([harness.PYTHON, PROGRAM, *args], env=self.env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def call(self, *args, left=()):
        """What the program returned; self.out and self.err are its other output."""
        done = self.start(*args)
        out, self.err = done.communicate(timeout=120)
        self.assertEqual(done.returncode, 0, self.err)
        lines = out.splitlines()
        self.out = [line for line in lines if not line.startswith("JSON")]
        # Neither functions, results nor sockets are left behind.
        self.assertEqual(os.listdir(self.dir), list(left))
        return json.loads(next(line for line in lines if line.startswith("JSON"))[4:])

    def test_values_by_rank(self):
        self.assertEqual(self.call("one_node"), [[0, 2, 1, 6, 3.0], [1, 2, 1, 6, 3.0]])
        self.assertEqual(sorted(self.out), ["[0]<stdout>:rank 0 of 2 on 0", "[1]<stdout>:rank 1 of 2 on 0"])

    def test_ranks_on_another_host(self):
        with open(os.path.join(self.dir, "ssh"), "w") as f:
            f.write(FAKE_SSH)
        os.chmod(os.path.join(self.dir, "ssh"), 0o755)
        self.env["PATH"] = self.dir + ":" + self.env["PATH"]
        self.assertEqual(self.call("two_hosts", "localhost:1,192.0.2.7:2", left=["ssh"]),
                         [[rank, 3, 2, 6, 6.0] for rank in range(3)])

    def test_errors_name_the_rank(self):
        errors = self.call("errors")
        raised = errors["raises"]
        self.assertEqual((raised["type"], raised["rank"], raised["cause"]), ("RankError", 1, "KeyError('on purpose')"))
        self.assertRegex(raised["text"], r"(?s)^rank 1: KeyError: 'on purpose' \(rank 1 \(pid \d+, node0\) exited with "
                         r"code 1\)\n\nTraceback.*, in fail\n.*KeyError: 'on purpose'$")
        self.assertNotIn("maypole/runner", raised["text"])
        self.assertRegex(errors["exits"]["text"], r"^rank 1: it called sys\.exit\(3\) \(rank 1 .* exited with code 3\)$")
        self.assertRegex(errors["returns what cannot be pickled"]["text"],
                         r"^rank 1: its result, of type generator, cannot be pickled: TypeError: ")
        self.assertRegex(errors["dies"]["text"], r"^rank 1 \(pid \d+, node0\) was killed by signal 9 \(Killed\)$")
        self.assertEqual(errors["exits well"], {"result": "[None, None]"})
        self.assertIn("TypeError: len() takes exactly one argument", errors["cannot start"]["text"])

    def test_output_where_no_descriptor_is(self):
        self.assertEqual(self.call("notebook"), {
            "results": [6, 6, "unset"], "out": ["[0]<stdout>:grüße 6", "[1]<stdout>:grüße 6"],
            "err": ["[0]<stderr>:oh", "[1]<stderr>:oh"]})
        self.assertEqual(self.out, [])

    def test_large_results(self):
        self.assertEqual(self.call("large"), [[5000000, "x", 5000000]] * 2)

    def test_an_elastic_job(self):
        self.assertEqual(self.call("elastic"), [[0, 5], [1, 5]])

    def test_horovods_name(self):
        self.env["PYTHONPATH"] = SHIM + ":" + self.env["PYTHONPATH"]
        self.assertEqual(self.call("horovod"), [[0, 2, "0.28.1"], [1, 2, "0.28.1"]])

    def ranks(self, directory):
        return [int(name.split(".")[1]) for name in os.listdir(directory)]

    def test_ctrl_c_ends_the_job(self):
        directory = tempfile.mkdtemp(prefix="mpr", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        self.assertEqual(self.call("interrupted", directory), "interrupted")
        self.assertEqual(len(self.ranks(directory)), 2)
        self.assertFalse(any(map(harness.alive, self.ranks(directory))))

    def test_the_job_ends_with_its_caller(self):
        directory = tempfile.mkdtemp(prefix="mpr", dir="/tmp")
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        caller = self.start("killed", directory)
        self.addCleanup(lambda: (caller.stdout.close(), caller.stderr.close()))
        deadline = time.monotonic() + 60
        while len(self.ranks(directory)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        pids = self.ranks(directory)
        self.assertEqual(len(pids), 2)
        os.kill(caller.pid, signal.SIGKILL)
        caller.wait()
        while any(map(harness.alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(any(map(harness.alive, pids)))


if __name__ == "__main__":
    unittest.main()
