"""Executors pass on what the coordinator sends to all nodes (docs/relays.md)."""

import signal
import unittest

import harness

NP = 4
# Node 0 has nodes 1 and 2 below it, node 1 has node 3. No schedules, so everything comes from the coordinator.
FLAGS = ["--coordinator-flag=--" + f for f in ("relay_nodes=1", "fan_out=2", "frozen_nodes=0")]
RELAYED = "maypole_relayed_messages_total"
PAUSED = "event=relays_paused"


class RelaysTest(unittest.TestCase):

    def job(self, mode):
        return harness.Job(np=NP, nodes=NP, program="frozen.py", args=[mode],
                           launcher_args=FLAGS + ["--verbose"])

    def relayed(self, job):
        return harness.metric(job.endpoints()["coordinator"], RELAYED)

    def await_running(self, job):
        for r in range(NP):
            job.await_file("running.%d" % r, 120)

    def test_graphs_that_change_process_sets_and_joins(self):
        with self.job("changing") as job:
            job.check_ok(120)
            self.assertIn("event=relays_begun", job.stderr())

    def test_runs_are_passed_on(self):
        with self.job("endless") as job:
            self.await_running(job)
            before = self.relayed(job)
            harness.wait_until(lambda: self.relayed(job) > before + 100, 60, "messages")
            # The coordinator writes one message for each, and acknowledgements.
            self.assertNotIn(PAUSED, job.stderr())

    def test_a_node_that_stands_still_and_goes_on(self):
        with self.job("endless") as job:
            self.await_running(job)
            executor = job.executors()[1]
            harness.kill(executor, signal.SIGSTOP)
            # A second without an acknowledgement, or its connection counts as broken.
            harness.wait_until(lambda: PAUSED in job.stderr(), 20, "the pause")
            harness.kill(executor, signal.SIGCONT)
            runs = harness.metric(job.endpoints()["coordinator"], "maypole_runs_total")
            harness.wait_until(
                lambda: harness.metric(job.endpoints()["coordinator"], "maypole_runs_total") > runs + 100,
                60, "runs after the pause")

    def test_a_node_that_dies_is_named(self):
        with self.job("endless") as job:
            self.await_running(job)
            harness.kill(job.executors()[1])
            job.wait(60)
            for r in (0, 2, 3):
                self.assertIn("node1", job.record(r)["error"])


if __name__ == "__main__":
    unittest.main()
