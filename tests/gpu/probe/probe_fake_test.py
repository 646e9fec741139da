"""The probe from end to end: all facts with the fake GPU, and on a machine without a GPU."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

PROBE = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"],
                     "tests", "gpu", "probe", "probe")
OUTCOMES = {"measured", "not measured", "failed"}
# Rows of facts 1 to 4, without the mode that ends each name.
KERNELS = ["copying kernel of 32 blocks",
           "copying kernel of 32 blocks, begun together",
           "copying kernel of the whole GPU",
           "copying kernel of the whole GPU, begun together"]
COPIES = ["copy within the device", "copy host to device",
          "copy device to host", "copy within, beside a full GPU",
          "host to device, beside a full GPU",
          "device to host, beside a full GPU", "kernel, beside a full GPU"]
HAND_OVERS = ["stream flags in host memory", "interprocess events",
              "host round trip"]
MEMORY = ["one writes, the other reads", "exporter killed", "both gone",
          "importer killed", "exporter frees it", "only a descriptor is left"]


class ProbeTest(unittest.TestCase):

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="probe")
        self.addCleanup(shutil.rmtree, self.dir)
        self.json = os.path.join(self.dir, "result.json")

    def probe(self, *options):
        run = subprocess.run([PROBE, "--json=" + self.json, *options],
                             capture_output=True, text=True, check=False)
        self.stdout, self.stderr = run.stdout, run.stderr
        return run.returncode

    def rows(self):
        with open(self.json, encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(result["version"], 1)
        self.machine = result["machine"]
        rows = result["rows"]
        for row in rows:
            self.assertEqual(set(row),
                             {"fact", "name", "outcome", "text", "figures"})
            self.assertIn(row["outcome"], OUTCOMES)
            self.assertTrue(row["text"])
            for figure in row["figures"]:
                self.assertEqual(set(figure), {"name", "value", "unit"})
            if row["outcome"] == "not measured":
                self.assertEqual(row["figures"], [])
            self.assertIn("\n%-6d" % row["fact"], self.stdout)
        names = [(row["fact"], row["name"]) for row in rows]
        self.assertEqual(sorted(names), sorted(set(names)))
        for line in self.stdout.splitlines():
            if line[:1].isdigit():
                self.assertLessEqual(len(line), 160)
        return rows

    def names(self, rows, fact, mode, outcome):
        end = ", " + mode
        return [row["name"][:-len(end)] for row in rows
                if row["fact"] == fact and row["outcome"] == outcome
                and row["name"].endswith(end)]

    def figures(self, rows, fact, name):
        [row] = [r for r in rows if (r["fact"], r["name"]) == (fact, name)]
        return {f["name"]: f["value"] for f in row["figures"]}

    def test_all_facts_with_the_fake(self):
        status = self.probe("--fake", "--quick")
        rows = self.rows()
        self.assertEqual([r for r in rows if r["outcome"] == "failed"], [])
        self.assertEqual(status, 0, self.stderr)
        self.assertEqual(
            {r["fact"] for r in rows if r["outcome"] == "measured"},
            set(range(1, 9)))
        for row in rows:
            if row["outcome"] == "not measured":
                self.assertEqual(row["text"], "the fake has no MPS")
                self.assertIn("MPS", row["name"])
            self.assertNotIn("HANGS", row["text"])
        self.assertEqual(self.machine["device"], "Maypole fake GPU")
        self.assertEqual(self.machine["note"],
                         "a fake GPU: the figures mean nothing")
        self.assertIn("kernel", self.machine)
        self.assertIn("processor", self.machine)
        self.assertEqual(self.machine["MPS"], "no: the fake has no MPS")

        for fact, expected in ((1, KERNELS), (2, COPIES), (3, HAND_OVERS),
                               (4, MEMORY)):
            self.assertEqual(self.names(rows, fact, "no MPS", "measured"),
                             expected)
        for fact, expected in ((2, COPIES), (3, HAND_OVERS), (4, MEMORY)):
            self.assertEqual(self.names(rows, fact, "MPS", "not measured"),
                             expected)
        self.check_figures(rows)

    def check_figures(self, rows):
        """Checks relations that also hold for the fake GPU."""
        beside = self.figures(rows, 1, "copying kernel of 32 blocks, no MPS")
        self.assertEqual(beside["repetitions"], 3)
        self.assertAlmostEqual(beside["ratio"],
                               beside["beside"] / beside["alone"])
        together = self.figures(
            rows, 1, "copying kernel of 32 blocks, begun together, no MPS")
        self.assertGreaterEqual(together["spins alone"], 40)
        self.assertGreaterEqual(together["together"], 40)

        flags = self.figures(rows, 3, "stream flags in host memory, no MPS")
        # 200 in two batches; the first round of each begins with the gate.
        # 200 in two batches; those of a batch that ended by the first look at it are left out: one at least.
        self.assertEqual(flags["rounds"] + flags["rounds left out"], 200)
        self.assertGreaterEqual(flags["rounds left out"], 2)
        self.assertGreater(flags["rounds"], 100)
        for name in ("interprocess events", "host round trip"):
            figures = self.figures(rows, 3, name + ", no MPS")
            self.assertEqual(figures["rounds"], 200)
            self.assertLessEqual(figures["least"], figures["p50"])
            self.assertLessEqual(figures["p50"], figures["p99"])
            self.assertLessEqual(figures["p99"], figures["most"])
            self.assertGreater(figures["least"], 0)

        shared = self.figures(rows, 4, "one writes, the other reads, no MPS")
        self.assertEqual(shared["size"], 20)
        self.assertEqual(shared["taken by the allocation"], 20)
        self.assertEqual(shared["taken by the import"], 0)
        gone = self.figures(rows, 4, "both gone, no MPS")
        self.assertEqual(gone["missing"], 0)
        [row] = [r for r in rows if r["name"] == "exporter killed, no MPS"]
        self.assertEqual(row["text"],
                         "the importer still reads and writes it")

    def test_only_what_is_asked_for(self):
        self.assertEqual(self.probe("--fake", "--quick", "--facts=3"), 0,
                         self.stderr)
        rows = self.rows()
        self.assertEqual(self.names(rows, 3, "no MPS", "measured"), HAND_OVERS)
        others = [r for r in rows if r["fact"] != 3]
        self.assertEqual([r["fact"] for r in others], [1, 2, 4, 5, 6, 7, 8])
        self.assertEqual({r["text"] for r in others}, {"not asked for"})

    def test_no_time_left(self):
        self.assertEqual(self.probe("--fake", "--quick", "--seconds=-1"), 0,
                         self.stderr)
        self.assertEqual({r["text"] for r in self.rows()},
                         {"no time was left (--seconds)"})

    def test_without_a_gpu(self):
        self.assertEqual(self.probe("--plugin=/nonexistent/plugin.so"), 3)
        self.assertRegex(
            self.stderr,
            r"\Agpu probe: no GPU here: .*/nonexistent/plugin\.so.*; build "
            r"with --config=cuda and run tests/gpu/run\.sh on a machine with "
            r"an NVIDIA driver\n\Z")
        rows = self.rows()
        self.assertEqual([r["fact"] for r in rows], list(range(1, 9)))
        for row in rows:
            self.assertEqual(row["outcome"], "not measured")
            self.assertRegex(row["text"], r"^no GPU: .*/nonexistent/plugin\.so")

    def test_wrong_flags(self):
        for wrong in ("--facts=9", "--facts=1,x", "word"):
            self.assertEqual(self.probe("--fake", "--quick", wrong), 1, wrong)
            self.assertIn("gpu probe: usage: ", self.stderr)
            self.assertFalse(os.path.exists(self.json))

    def test_a_device_that_is_not_there(self):
        self.assertEqual(self.probe("--fake", "--device=GPU-none"), 3)
        self.assertIn("GPU-none", self.stderr)

    def test_a_file_that_cannot_be_written(self):
        self.json = "/nonexistent/result.json"
        self.assertEqual(self.probe("--fake", "--quick", "--facts=3"), 1)
        self.assertIn("cannot write /nonexistent/result.json", self.stderr)


if __name__ == "__main__":
    unittest.main()
