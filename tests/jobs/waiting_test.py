"""The CPU time that ranks, executors and the coordinator use while waiting."""

import os
import signal
import time
import unittest

import harness

SECONDS = 3
TICK = 1 / os.sysconf("SC_CLK_TCK")
IDLE = 0.01  # of a core
WAITING = 0.05


def processor_seconds(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


class WaitingTest(unittest.TestCase):
    def measure(self, title, limits):
        """limits: {name: (pid, greatest part of a core)}"""
        before = {name: processor_seconds(pid) for name, (pid, _) in limits.items()}
        start = time.monotonic()
        time.sleep(SECONDS)
        elapsed = time.monotonic() - start
        used = {name: (processor_seconds(pid) - before[name]) / elapsed for name, (pid, _) in limits.items()}
        print("%s: %s" % (title, ", ".join("%s %.1f %%" % (n, 100 * u) for n, u in used.items())), flush=True)
        for name, (_, limit) in limits.items():
            self.assertLess(used[name], limit, "%s, %s" % (title, name))

    def reach(self, job, stage):
        for r in range(job.np):
            job.await_file("%s.%d" % (stage, r))
        # From here on: until the budgets are used up and the last operation is done.
        time.sleep(0.5)

    def run_on(self, nodes, ranks):
        title = "%d x %d" % (nodes, ranks // nodes)
        with harness.Job(np=ranks, nodes=nodes, program="waiting.py") as job:
            pids = [job.rank_pid(r) for r in range(ranks)]
            daemons = {"coordinator": (job.daemons("maypole-coordinator")[0], IDLE)}
            self.reach(job, "idle")
            executors = job.executors()
            self.assertEqual(len(executors), nodes)
            daemons.update(("executor %d" % n, (pid, IDLE)) for n, pid in enumerate(executors))
            agents = {"agent %d" % n: (pid, IDLE) for n, pid in enumerate(job.daemons("maypole-worker"))}
            self.assertEqual(len(agents), nodes)
            daemons.update(agents)

            def limits(late, others):
                last = ranks - 1
                return {**daemons, **{"rank %d" % r: (pids[r], late if r == last else others) for r in range(ranks)}}

            self.measure(title + " idle", limits(IDLE, IDLE))
            for pid in pids:
                os.kill(pid, signal.SIGUSR1)
            self.reach(job, "waiting")
            self.measure(title + " waiting", limits(IDLE, WAITING))
            os.kill(pids[-1], signal.SIGUSR1)
            self.reach(job, "outstanding")
            self.measure(title + " outstanding", limits(IDLE, WAITING))
            for pid in pids:
                os.kill(pid, signal.SIGUSR1)
            job.check_ok(60)
            want = float(sum(range(ranks)))
            for record in job.records():
                self.assertEqual(record["sums"], [want] * 6)

    def test_one_node_of_two_ranks(self):
        self.run_on(1, 2)

    def test_two_nodes_of_two_ranks(self):
        self.run_on(2, 4)


if __name__ == "__main__":
    unittest.main()
