"""The number of names in use at a time is bounded, but not the number over a job's life."""

import os
import subprocess
import unittest

import daemons
import harness

SLOTS, STEPS, NAMES = 64, 20, 9


class NewNamesTest(unittest.TestCase):
    def check(self, nodes, local):
        np = nodes * local
        with daemons.Daemons(nodes, ["--slots=%d" % SLOTS]) as d:
            ranks = []
            for r in range(np):
                env = {"MAYPOLE_RANK": str(r), "MAYPOLE_SIZE": str(np), "MAYPOLE_LOCAL_RANK": str(r % local),
                       "MAYPOLE_LOCAL_SIZE": str(local), "MAYPOLE_CROSS_RANK": str(r // local),
                       "MAYPOLE_CROSS_SIZE": str(nodes), "MAYPOLE_JOB": "names", "MAYPOLE_TOKEN": "t",
                       "MAYPOLE_AGENT": d.sockets[r // local], "MAYPOLE_TEST_DIR": d.dir}
                ranks.append(subprocess.Popen(
                    [harness.PYTHON, os.path.join(harness.ROOT, "tests/programs/new_names.py"),
                     str(STEPS), str(NAMES), str(SLOTS)],
                    env=harness.environment(env), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
            try:
                texts = [r.communicate(timeout=100)[1] for r in ranks]
            finally:
                for r in ranks:
                    if r.poll() is None:
                        r.kill()
                        r.communicate()
            self.assertEqual([r.returncode for r in ranks], [0] * np, texts)
            records = [harness.Job.record(d, r) for r in range(np)]
        self.assertEqual([r["wrong"] for r in records], [0] * np)
        self.assertEqual([len(r["refused"]) for r in records], [2] + [0] * (np - 1))
        for i, text in enumerate(records[0]["refused"]):
            self.assertIn("allreduce 'more.%d': all %d operation names that a job may use at the same time on this node "
                          "are in use; wait for some operations before you submit others" % (SLOTS + i, SLOTS), text)

    # Of each, more than three times as many names as slots.
    def test_one_node(self):
        self.check(1, 2)

    def test_two_nodes(self):
        self.check(2, 2)


if __name__ == "__main__":
    unittest.main()
