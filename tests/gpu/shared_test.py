"""The executor reduces arrays in GPU memory that ranks share with it there, in place."""

import unittest

import fake_gpu

RESOURCE_EXHAUSTED = 8
ROOM = 8 << 20


class SharedTest(unittest.TestCase):

    def check(self, fake="", memory="auto"):
        env = {"MAYPOLE_GPU_MEMORY_BYTES": str(ROOM), "MAYPOLE_GPU_MEMORY": memory}
        with fake_gpu.Job(3, "shared.py", fake=fake, env=env) as job:
            job.check_ok()
            records = job.records()
            self.assertEqual(job.free_bytes(), job.total_bytes())
        for record in records:
            results = record["results"]
            self.assertEqual(results["in place"], [[[6.0], 1]] * 3)
            self.assertEqual(results["refused"], RESOURCE_EXHAUSTED)
            self.assertEqual(results["not shared"], [[6.0], 0])
            self.assertEqual(results["part"], [[6.0], 1])
            self.assertEqual(results["rest"], [record["rank"] + 1.0])
            self.assertEqual(results["with room"], [[6.0], 1])

    def test_descriptors(self):
        self.check(memory="descriptor")

    def test_ipc_handles_and_late_work(self):
        self.check(fake="seed=3", memory="ipc")


if __name__ == "__main__":
    unittest.main()
