"""The largest job there may be: 16,384 ranks on 2,048 nodes."""

import os
import unittest

import harness
import scale

COORDINATOR = os.path.join(harness.ROOT, "coordinator", "maypole-coordinator")
LOAD = os.path.join(harness.ROOT, "tests", "scale", "scale_load")


class LargestTest(unittest.TestCase):

    def test_two_thousand_nodes(self):
        got = scale.run(COORDINATOR, LOAD, nodes=2048, warmup=1, together=2, late=1, end="rank")
        self.assertEqual(got["ranks"], 16384)
        self.assertEqual(got["together"]["steps"], 2)
        self.assertLess(got["threads"], 64)
        self.assertGreater(got["end_s"], 0)


if __name__ == "__main__":
    unittest.main()
