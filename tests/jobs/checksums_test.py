"""Checksums: a bit that is flipped in one rank's copy of a result is found.

The ranks use the library with kill points, in which MAYPOLE_FLIP=RANK:NAME:NTH:BIT
flips a bit (client/engine/result_fault.h).
"""

import os
import re
import unittest
import urllib.request

import harness

FAULTY = os.path.join(harness.ROOT, "tests", "libmaypole_with_faults.so")
ENOUGH = 1_000_000  # steps: the error comes first


def compared(job):
    """{outcome: operations} of the coordinator's metric."""
    url = "http://%s/metrics" % job.endpoints()["coordinator"]
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    found = re.findall(r'maypole_checksums_total\{outcome="(\w+)"\} (\S+)', text)
    return {outcome: float(value) for outcome, value in found}


class ChecksumsTest(unittest.TestCase):
    def texts(self, np, nodes, flip, launcher_args=("--checksums",)):
        """What each rank was told."""
        with harness.Job(np=np, nodes=nodes, program="checked.py", args=[ENOUGH],
                         launcher_args=launcher_args,
                         env={"MAYPOLE_LIBRARY": FAULTY, "MAYPOLE_FLIP": flip}) as job:
            job.check_ok(120)
            return [r["text"] for r in job.records()], job.stderr()

    def check_one_wrong(self, np, nodes, wrong, kind, name, nth, bit):
        texts, log = self.texts(np, nodes, "%d:%s:%d:%d" % (wrong, name, nth, bit))
        for text in texts:
            self.assertIn("results differ: %s '%s' (call %d):" % (kind, name, nth), text)
            self.assertRegex(text, r"rank %d \(node [^)]*pid \d+\) has checksum [0-9a-f]{8} of \d+ bytes" % wrong)
            self.assertIn("wrong is the copy of rank %d" % wrong, text)
        self.assertRegex(log, r"event=results_differ .*kind=%s tensor=\"%s\" call=%d wrong=\"rank %d\"" % (kind, name, nth, wrong))
        return texts

    def test_three_ranks_on_one_node(self):
        text = self.check_one_wrong(3, 1, 1, "allreduce", "large", 3, 40)[0]
        self.assertIn("of 800000 bytes", text)
        self.assertIn("ranks 0,2 have checksum", text)

    def test_two_nodes_of_two_ranks(self):
        text = self.check_one_wrong(4, 2, 3, "allreduce", "large", 5, 6_399_999)[0]
        self.assertIn("ranks 0,1,2 have checksum", text)

    def test_eager(self):
        self.check_one_wrong(3, 1, 2, "allreduce", "small", 2, 7)

    def test_broadcast_and_its_root(self):
        self.check_one_wrong(3, 1, 0, "broadcast", "from", 1, 0)

    def test_allgather_on_two_nodes(self):
        self.check_one_wrong(4, 2, 0, "allgather", "gathered", 4, 100)

    def test_of_two_ranks_both_are_named(self):
        for nodes in (1, 2):
            texts, log = self.texts(2, nodes, "1:small:1:0")
            for text in texts:
                self.assertRegex(text, r"rank 0 \(node .*rank 1 \(node ")
                self.assertIn("there is no majority, so any of them can be wrong", text)
            self.assertIn('suspects="ranks 0,1"', log)

    def test_a_warning_lets_the_job_go_on(self):
        with harness.Job(np=3, program="checked.py", args=[20],
                         env={"MAYPOLE_LIBRARY": FAULTY, "MAYPOLE_FLIP": "0:large:2:9",
                              "MAYPOLE_CHECKSUMS": "warn"}) as job:
            # 20 steps of 4 operations.
            harness.wait_until(lambda: sum(compared(job).values()) >= 80, 60, "all comparisons")
            counts = compared(job)
            job.touch("go")
            job.check_ok(60)
            self.assertEqual(counts, {"equal": 79, "different": 1, "unchecked": 0})
            self.assertIn('tensor="large" call=2 wrong="rank 0"', job.stderr())
            self.assertEqual([r["text"] for r in job.records()], [""] * 3)

    def test_without_checksums_nobody_notices(self):
        with harness.Job(np=2, program="checked.py", args=[5],
                         env={"MAYPOLE_LIBRARY": FAULTY, "MAYPOLE_FLIP": "0:large:2:9"}) as job:
            job.await_file("done.0")
            self.assertEqual(compared(job), {"equal": 0, "different": 0, "unchecked": 0})
            job.touch("go")
            job.check_ok(60)
            self.assertNotIn("results_differ", job.stderr())

    def test_training_is_the_same_with_checksums(self):
        for np, nodes in ((3, 1), (4, 2)):
            digests = set()
            for args in ((), ("--checksums",)):
                with harness.Job(np=np, nodes=nodes, program="train.py", args=[20], launcher_args=args) as job:
                    job.check_ok(120)
                    digests.update(r["digest"] for r in job.records())
                    self.assertNotIn("results_differ", job.stderr())
            self.assertEqual(len(digests), 1)

    def test_a_mode_that_does_not_exist(self):
        with harness.Job(np=2, program="checked.py", args=[1], launcher_args=["--checksums=all"]) as job:
            self.assertEqual(job.wait(30), 2)
            self.assertIn("--checksums='all': expected 1 (results that differ end the job), warn", job.stderr())


if __name__ == "__main__":
    unittest.main()
