"""Steps of many tensors over two nodes run as few runs, even if tensors are missing."""

import statistics
import unittest

import harness

NP, STEPS, TENSORS = 4, 40, 50
WAYS = ("steady", "polled", "dynamic", "synchronous")


class FusionTest(unittest.TestCase):
    def run_ways(self, env):
        """Runs, operations and median seconds per step of each way."""
        out = {}
        # The coordinator counts what it has issued itself.
        with harness.Job(np=NP, nodes=2, program="fusion.py", args=[STEPS, TENSORS], env=env,
                         launcher_args=["--coordinator-flag=--frozen_nodes=0"]) as job:
            coordinator = job.endpoints()["coordinator"]
            before = (0, 0, 0)
            for way in WAYS:
                for r in range(NP):
                    job.await_file("%s.%d" % (way, r), 120)
                now = tuple(harness.metric(coordinator, name) for name in (
                    "maypole_runs_total", "maypole_operations_total", "maypole_buckets_total"))
                took = [s for r in range(NP) for s in job.record(r)[way]]
                out[way] = [n - b for n, b in zip(now, before)] + [statistics.median(took), max(took)]
                before = now
                job.touch("after_" + way)
            job.check_ok(30)
            self.stderr = job.stderr()
        print({k: [round(x, 4) for x in v] for k, v in out.items()}, flush=True)
        return out

    def test_steps_are_fused(self):
        ways = self.run_ways({})
        for way in ("steady", "polled"):
            runs, operations, buckets, median, _ = ways[way]
            self.assertEqual(operations, STEPS * TENSORS, way)
            # The first step is learned, one by one at worst.
            self.assertLess(runs, TENSORS + STEPS * TENSORS / 3, way)
            self.assertGreater(buckets, 0, way)
            self.assertLess(median, 0.5, way)
        runs, operations, _, median, _ = ways["dynamic"]
        self.assertEqual(operations, sum(1 + s % TENSORS for s in range(STEPS)))
        self.assertLessEqual(runs, operations)
        self.assertLess(median, 0.5)
        # Never held, so never late by a bucket's age.
        runs, operations, buckets, _, _ = ways["synchronous"]
        self.assertEqual(runs, operations)
        self.assertEqual(buckets, 0)

    def test_the_environment_turns_it_off(self):
        ways = self.run_ways({"HOROVOD_FUSION_THRESHOLD": "0"})
        for way in WAYS:
            runs, operations, buckets, _, _ = ways[way]
            self.assertEqual(runs, operations, way)
            self.assertEqual(buckets, 0, way)

    def test_a_bad_threshold_is_one_line(self):
        with harness.Job(np=2, program="fusion.py", args=[1, 1],
                         env={"MAYPOLE_FUSION_THRESHOLD": "64MB"}) as job:
            self.assertEqual(job.wait(20), 2)
            self.assertEqual(job.stderr(), (
                "maypolerun: MAYPOLE_FUSION_THRESHOLD='64MB': must be a number of bytes from 0 "
                "(no fusion) to 17592186044416\n"))


if __name__ == "__main__":
    unittest.main()
