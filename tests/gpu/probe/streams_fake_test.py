"""Facts 5 to 8 from end to end with the fake GPU: their rows, and relations that also hold for the fake."""

import json
import os
import subprocess
import tempfile
import unittest

PROBE = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"],
                     "tests", "gpu", "probe", "probe")
TYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20}
LEFT = 5  # elements that a checked reduction leaves alone
NCCL = ["equal NCCL_HOSTID", "different NCCL_HOSTID: join",
        "different NCCL_HOSTID: all-reduce", "one does not call, both abort",
        "one is killed, the other aborts"]
WAITS = {"later streams of the same process": (8, 8),
         "released by later streams of the same process": (2, 8),
         "crosswise in one process": (1, 4),
         "one process waits, another releases": (2, 8),
         "four processes wait, another releases": (2, 8),
         "crosswise in two processes, opposite orders": (1, 4)}


class StreamsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix="probe") as directory:
            path = os.path.join(directory, "result.json")
            cls.run_ = subprocess.run(
                [PROBE, "--fake", "--quick", "--facts=5,6,7,8",
                 "--json=" + path], capture_output=True, text=True,
                check=False)
            with open(path, encoding="utf-8") as file:
                cls.rows = {(row["fact"], row["name"]): row
                            for row in json.load(file)["rows"]}

    def setUp(self):
        self.assertEqual(self.run_.returncode, 0, self.run_.stderr)

    def measured(self, fact, name):
        """Text and figures of a row."""
        row = self.rows[fact, name]
        self.assertEqual(row["outcome"], "measured", row)
        return row["text"], {f["name"]: f["value"] for f in row["figures"]}

    def test_reductions(self):
        for dtype, size in TYPES.items():
            for k in (2, 4, 8):
                text, figures = self.measured(5, f"k={k}, {dtype}")
                self.assertIn(f"sums right in all {k} buffers", text)
                elements = [bytes_ // size - LEFT for bytes_ in SIZES.values()]
                self.assertEqual(figures["checked"], k * sum(elements))
                self.assertEqual(figures["bits unlike the CPU's"], 0)
                self.assertGreater(figures["worst error"], 0)
                self.assertLessEqual(figures["worst error"], 1)
                for name in SIZES:
                    self.assertGreater(figures[name], 0)
                    self.assertLessEqual(figures[name + " slowest"],
                                         figures[name])
                    self.assertLessEqual(figures[name],
                                         figures[name + " fastest"])
                    self.assertGreater(figures[name + " copy"], 0)
                    self.assertGreater(figures[name + " kernel copy"], 0)

    def test_waits_for_the_dead(self):
        text, figures = self.measured(6, "a stream waits for the dead, no MPS")
        self.assertIn("outputs must be poisoned", text)
        self.assertEqual(figures["rounds"], 5)
        self.assertEqual(figures["ran on"], 5)
        self.assertEqual(figures["good afterwards"], 5)
        # The fake's streams end with their process.
        self.assertEqual(figures["wrote after death"], 0)
        self.assertLessEqual(figures["released by the watchdog"], 5)
        self.assertGreater(figures["kill to death seen p50"], 0)
        text, figures = self.measured(6, "the dead's own stream waits, no MPS")
        self.assertIn("came back in 2 of 2 rounds", text)
        self.assertIn("results right in 2", text)
        self.assertGreater(figures["work beside, median p50"], 0)
        for name in ("a stream waits for the dead, MPS",
                     "the dead's own stream waits, MPS"):
            self.assertEqual(self.rows[6, name]["outcome"], "not measured")

    def test_nccl(self):
        text, _ = self.measured(7, "equal NCCL_HOSTID, no MPS")
        self.assertRegex(text, "^NCCL refuses: .*Duplicate GPU detected")
        text, _ = self.measured(7, "different NCCL_HOSTID: join, no MPS")
        self.assertEqual(text, "accepted")
        text, figures = self.measured(
            7, "different NCCL_HOSTID: all-reduce, no MPS")
        self.assertEqual(text, "works; sums right at both ranks")
        for size in ("4 KiB", "64 KiB"):
            self.assertGreater(figures[size], 0)
            self.assertGreaterEqual(figures[size + " slowest"], figures[size])
            self.assertGreaterEqual(figures[size + " times"], 1)
        text, figures = self.measured(
            7, "one does not call, both abort, no MPS")
        self.assertEqual(
            text, "it waits; abort ends it; contexts afterwards: good, good")
        self.assertGreater(figures["its stream done"], 0)
        text, _ = self.measured(
            7, "one is killed, the other aborts, no MPS")
        self.assertIn("abort ends the wait; context afterwards: good", text)
        for name in NCCL:
            self.assertEqual(self.rows[7, name + ", MPS"]["outcome"],
                             "not measured")

    def test_many_waits(self):
        # Each stream of the fake is a queue of its own: nothing blocks.
        for queues in (8, 32):
            for name, (of_2, of_8) in WAITS.items():
                text, figures = self.measured(8, f"{name}, {queues} queues")
                self.assertRegex(text, "^all .* with 2 to 8 waiting streams$")
                self.assertEqual(figures["n=2"], of_2)
                self.assertEqual(figures["n=8"], of_8)
                self.assertEqual("n=8 kernel p50" in figures,
                                 "another" in name)

    def test_calls_while_a_stream_waits(self):
        text, figures = self.measured(8, "calls while a stream waits")
        # The fake keeps Free's promise: it waits for all streams.
        self.assertTrue(text.startswith(
            "BLOCK until the wait ends: unmap_imported, free; go on: "), text)
        self.assertNotIn("failed:", text)
        self.assertEqual(len(figures), 14)
        self.assertIn("kernel_never_launched_before", figures)


if __name__ == "__main__":
    unittest.main()
