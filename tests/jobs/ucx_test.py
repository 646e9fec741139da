"""Jobs whose nodes exchange tensors over UCX: results, metrics, lost nodes, and the messages where UCX cannot be used.

The UCX library is PyPI's, because the system's may be older than Maypole permits. Without InfiniBand adapters UCX uses
TCP; Maypole does the same in both cases.
"""

import os
import re
import signal
import subprocess
import sys
import time
import unittest

import harness
import pypi_torch

LONG = "--long" in sys.argv
USE = "--agent-flag=--network_backend="


class Jobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if pypi_torch.ucx() is None:
            raise unittest.SkipTest("UCX is not in the cache, and PyPI cannot be reached")
        cls.env = pypi_torch.ucx_environment()

    def job(self, np, nodes, program, backend="ucx", args=(), env=None):
        return harness.Job(np=np, nodes=nodes, program=program, args=args, env=self.env if env is None else env,
                           launcher_args=[USE + backend, "--verbose"])

    def check_collectives(self, np, nodes):
        with self.job(np, nodes, "collectives.py") as job:
            job.check_ok(120)
            self.assertGreater(min(r["checks"] for r in job.records()), 900)
            lines = re.findall(r"event=network_backend .* ucx_nodes=%d tcp_nodes=0 why_tcp=none" % (nodes - 1), job.stderr())
            self.assertEqual(len(lines), nodes, job.stderr())


class UcxTest(Jobs):
    def test_all_collectives(self):
        self.check_collectives(4, 2)

    def test_a_lost_executor_is_named_and_counted(self):
        with self.job(4, 2, "hang.py") as job:
            for r in range(3):
                job.await_file("waiting.%d" % r)
            for node in ("node0", "node1"):
                self.assertEqual(harness.metric(job.endpoints()[node], "maypole_ucx_nodes"), 1)
            killed = time.monotonic()
            os.kill(job.executors()[1], signal.SIGKILL)
            for r in range(3):
                job.await_file("rank.%d.json" % r, 20)
                record = job.record(r)
                self.assertIn("allreduce 'awaited'", record["text"])
                self.assertIn("executor", record["text"])
                self.assertLess(record["seen"] - killed, 5.0)

    def test_auto_uses_tcp_where_no_adapter_is(self):
        if os.path.exists("/sys/class/infiniband"):
            self.skipTest("this machine has an adapter for InfiniBand or RoCE")
        with self.job(2, 2, "recognisable.py", backend="auto") as job:
            job.check_ok()
            self.assertEqual(len(re.findall(r'ucx_nodes=0 tcp_nodes=1 why_tcp="this node has no InfiniBand or RoCE adapter',
                                            job.stderr())), 2, job.stderr())

    def test_without_the_library_the_job_says_so(self):
        with self.job(2, 2, "recognisable.py", env={"MAYPOLE_UCX_LIBRARY": "/nowhere/libucp.so.0"}) as job:
            job.check_ok()
            for record in job.records():
                self.assertIn("this node cannot use UCX, which its --network_backend=ucx requires: UCX cannot be loaded: "
                              "/nowhere/libucp.so.0", record["error"])


if LONG:
    import elastic_jobs

    class ElasticUcxTest(elastic_jobs.ElasticJobTest):
        """Each membership epoch has a UCX of its own."""

        def test_the_dead_are_replaced(self):
            if pypi_torch.ucx() is None:
                raise unittest.SkipTest("UCX is not in the cache, and PyPI cannot be reached")
            job = self.start("-np", "2", "--min-np", "1", "-H", "localhost:1,root@127.0.0.1:1", "--verbose",
                             "--blacklist-cooldown-range", "1", "1", USE + "ucx",
                             **pypi_torch.ucx_environment())
            ranks = self.await_ranks(job, 2)
            for _ in range(4):
                victim = self.random.choice(sorted(ranks))
                os.kill(victim, signal.SIGKILL)
                harness.wait_until(lambda pid=victim: not harness.alive(pid), 30, "the end of a killed process")
                after = self.await_ranks(job, 2)
                self.assertEqual(len(ranks & after), 1)  # the survivor has kept its process
                ranks = after
            self.assertGreaterEqual(len(re.findall("event=network_backend .* ucx_nodes=1 tcp_nodes=0", job.stderr())), 2 * 5,
                                    job.stderr())
            self.finish(job, 2)

    class LongUcxTest(Jobs):
        def test_unit_tests(self):
            for name in ("tcp_backend_test", "tcp_subsets_test", "tcp_ucx_test", "ucx/ucx_fabric_test"):
                with self.subTest(name):
                    done = subprocess.run([os.path.join(harness.ROOT, "worker/backend", name), "--gtest_filter=*Ucx*"],
                                          env=dict(os.environ, **self.env), capture_output=True, text=True, timeout=300)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertNotIn("Running 0 tests", done.stdout)

        def test_all_collectives_on_three_nodes(self):
            self.check_collectives(3, 3)

        def test_encrypted_jobs_do_not_use_it(self):
            with harness.Job(np=2, nodes=2, program="recognisable.py", env=self.env,
                             launcher_args=[USE + "ucx", "--encrypt"]) as job:
                job.check_ok()
                for record in job.records():
                    self.assertIn("UCX does not encrypt, so --network_backend=ucx and network encryption (require) exclude each "
                                  "other", record["error"])

        def test_process_sets(self):
            with self.job(4, 2, "process_sets.py") as job:
                job.check_ok(120)
                for record in job.records():
                    self.assertGreaterEqual(record["checks"], 3 * 12 * 10 * 3)

        def test_a_lost_rank_is_named(self):
            with self.job(4, 2, "victim.py", args=["sigkill", 1]) as job:
                job.wait(60)
                for r in (0, 2, 3):
                    self.assertIn("rank 1", job.record(r)["text"])


if __name__ == "__main__":
    unittest.main(argv=[arg for arg in sys.argv if arg != "--long"])
