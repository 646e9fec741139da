"""The frozen tier: nodes execute equal steps without the coordinator (docs/schedule.md)."""

import glob
import json
import os
import subprocess
import unittest

import harness

NP, COUNTED, TENSORS = 4, 200, 10
CTL = os.path.join(harness.ROOT, "client/ctl/maypolectl")


def status(job):
    """What maypolectl says of the job."""
    secret = glob.glob(os.path.join(job.dir, "**", "secret"), recursive=True)[0]
    said = subprocess.run([CTL, "--coordinator", job.endpoints()["admin"], "--secret_file", secret, "--json", "status"],
                          env=harness.environment(), capture_output=True, text=True, timeout=30, check=True)
    return json.loads(said.stdout)["jobs"][0]


class FrozenTest(unittest.TestCase):
    def await_all(self, job, name, seconds=120):
        for r in range(job.np):
            job.await_file("%s.%d" % (name, r), seconds)

    def values(self, job, count):
        """Of the nodes: operations reported and executed; of the coordinator: runs it has issued."""
        ends = job.endpoints()
        nodes = [end for name, end in ends.items() if name.startswith("node")]
        self.assertEqual(len(nodes), count)
        return (sum(harness.metric(end, "maypole_presence_operations_total") for end in nodes),
                sum(harness.metric(end, "maypole_executor_operations_total") for end in nodes),
                harness.metric(ends["coordinator"], "maypole_runs_total"))

    def ended(self, job, reason):
        return harness.metric(job.endpoints()["coordinator"], 'maypole_schedules_ended_total{reason="%s"' % reason)

    def test_equal_steps_need_no_message_to_the_coordinator(self):
        self.check_steady(2)

    def test_nor_do_those_of_many_nodes(self):
        self.check_steady(4, ["--coordinator-flag=--frozen_nodes=3"])

    def check_steady(self, nodes, launcher_args=()):
        with harness.Job(np=NP, nodes=nodes, program="frozen.py", args=["steady"],
                         launcher_args=list(launcher_args)) as job:
            job.await_file("rank.0.pid")
            job.touch("settled")
            self.await_all(job, "settled")
            job.touch("count")
            self.await_all(job, "warm")
            self.assertEqual(harness.metric(job.endpoints()["coordinator"], "maypole_frozen_jobs"), 1)
            self.assertEqual(status(job)["tier"], "frozen")
            before = self.values(job, nodes)
            job.touch("counting")
            self.await_all(job, "counted")
            after = self.values(job, nodes)
            self.assertEqual(after[0] - before[0], 0)
            self.assertEqual(after[1] - before[1], nodes * COUNTED * TENSORS)
            self.assertEqual(after[2] - before[2], 0)

            others = self.ended(job, "other_operation")
            job.touch("other")
            self.await_all(job, "other")
            self.assertEqual(self.ended(job, "other_operation") - others, 1)
            said = status(job)
            self.assertEqual(said["tier"], "negotiated")
            self.assertRegex(said["schedule_ended"], r"^broadcast 'other' \(node node[0-3]\)$")
            self.assertGreater(int(said["operations"]), COUNTED * TENSORS)

            late = self.ended(job, "late")
            job.touch("late")
            self.await_all(job, "late")
            self.assertGreater(self.ended(job, "late"), late)
            job.touch("end")
            job.check_ok(60)

    def test_graphs_that_change_process_sets_and_joins(self):
        with harness.Job(np=NP, nodes=2, program="frozen.py", args=["changing"]) as job:
            job.check_ok(120)

    def test_three_nodes(self):
        with harness.Job(np=3, nodes=3, program="frozen.py", args=["changing"]) as job:
            job.check_ok(120)

    def test_three_nodes_in_a_tree(self):
        with harness.Job(np=3, nodes=3, program="frozen.py", args=["changing"],
                         launcher_args=["--coordinator-flag=--frozen_nodes=1"]) as job:
            job.check_ok(120)

    def test_a_rank_that_dies_is_named(self):
        with harness.Job(np=NP, nodes=2, program="frozen.py", args=["endless"]) as job:
            self.await_all(job, "running")
            harness.kill(job.rank_pid(2))
            job.wait(60)
            for r in (0, 1, 3):
                self.assertIn("rank 2", job.record(r)["error"])


if __name__ == "__main__":
    unittest.main()
