"""Memory and load of a job's GPUs, as maypolectl gets them: of the fake driver's GPU, from a fake NVML."""

import glob
import json
import os
import subprocess
import time
import unittest

import fake_gpu
import harness

CTL = os.path.join(harness.ROOT, "client/ctl/maypolectl")


class LoadsTest(unittest.TestCase):

    def status(self, job):
        secret = glob.glob(os.path.join(job.dir, "**", "secret"), recursive=True)[0]
        said = subprocess.run(
            [CTL, "--coordinator", job.endpoints()["admin"], "--secret_file", secret, "top", "--json", "--looks", "1"],
            env=harness.environment(), capture_output=True, text=True, timeout=60)
        self.assertEqual(said.returncode, 0, said.stderr)
        return json.loads(said.stdout)["jobs"][0]

    def test_the_status_has_the_gpu_that_ranks_use(self):
        with fake_gpu.Job(2, "loop.py") as job:
            for r in range(2):
                job.await_file("running.%d" % r, 120)
            deadline = time.monotonic() + 60
            while True:
                (node,) = self.status(job)["nodes"]
                if node["gpus"]:
                    break
                self.assertLess(time.monotonic(), deadline, node)
            (used,) = {gpu["uuid"] for rank in node["rank_status"] for gpu in rank["gpus"]}
            self.assertEqual(node["gpus"], [
                {"uuid": used, "used_bytes": "30000", "total_bytes": "80000", "busy_percent": 73}])
            job.touch("end")
            job.check_ok(60)


if __name__ == "__main__":
    unittest.main()
