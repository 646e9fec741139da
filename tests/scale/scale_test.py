"""A coordinator and the load program: everything is ordered right, without an error.

The load program fails if two nodes get different runs, if a run is missing or comes twice, or if
anything ends that should not. This test does not judge times.
"""

import os
import unittest

import harness
import scale

COORDINATOR = os.path.join(harness.ROOT, "coordinator", "maypole-coordinator")
LOAD = os.path.join(harness.ROOT, "tests", "scale", "scale_load")
HOP = os.path.join(harness.ROOT, "tests", "scale", "relay_hop")
TENSORS = 161


class ScaleTest(unittest.TestCase):

    def play(self, **flags):
        got = scale.run(COORDINATOR, LOAD, **flags)
        self.assertEqual(got["nodes"], flags["nodes"])
        self.assertGreater(got["start"]["connected_s"], 0)
        # Hello, RanksReady, Endpoint and the acknowledgements.
        self.assertGreaterEqual(got["start"]["messages_in"], 3 * flags["nodes"])
        return got

    def test_sixteen_nodes_in_every_pattern(self):
        got = self.play(nodes=16, warmup=2, together=3, late=2, paced=1, pace_ms=20, end="rank")
        for part, steps in (("together", 3), ("late", 2), ("paced", 1)):
            self.assertEqual(got[part]["steps"], steps)
            # There is at least a run, and not more runs than tensors.
            self.assertGreaterEqual(got[part]["runs"], 1)
            self.assertLessEqual(got[part]["runs"], TENSORS)
            # Every node gets an Execute at least.
            self.assertGreaterEqual(got[part]["messages_out"], 16)
            self.assertGreaterEqual(got[part]["operation_p99_ms"], got[part]["operation_p50_ms"])
        self.assertGreater(got["together"]["coordinator_cpu_s"], 0)
        self.assertGreater(got["most_resident_bytes"], 1 << 20)
        # Streams have no threads of their own.
        self.assertLess(got["threads"], 64)
        self.assertGreater(got["end_s"], 0)

    def test_a_connection_each_and_a_broken_stream(self):
        got = self.play(nodes=16, channels=16, warmup=1, together=1, end="stream")
        # After the time in which the node might have come back.
        self.assertGreaterEqual(got["end_s"], scale.RESUME_S)

    def test_executors_pass_on_what_all_get(self):
        got = self.play(nodes=80, warmup=1, late=2, end="rank")
        self.assertLess(got["late"]["messages_out"], 20)
        got = self.play(relays=False, nodes=80, warmup=1, late=2)
        self.assertGreaterEqual(got["late"]["messages_out"], 80)

    def test_a_hop(self):
        got = scale.hop(HOP, 80)
        self.assertGreater(got["p50_us"], 0)
        self.assertGreaterEqual(got["p99_us"], got["p50_us"])

    def test_a_small_job_beside_a_larger_one(self):
        got = scale.beside(COORDINATOR, LOAD, nodes=16, rounds=50)
        self.assertEqual(got["together"]["steps"], 50)


if __name__ == "__main__":
    unittest.main()
