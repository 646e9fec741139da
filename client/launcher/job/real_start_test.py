"""maypolerun with the real daemons: what the start of a job shows, and what ranks and daemons are told then."""
import os

import concurrently
from client.launcher.testing.real_job import MEET, PYTHON, RealJobTestCase

# Which processors each thread of a rank may use, after init().
THREADS = """
import os
from maypole.common import basics
basics.init()
allowed = set()
for task in os.listdir("/proc/self/task"):
    try:
        with open("/proc/self/task/%s/status" % task) as f:
            allowed |= {line.split()[1] for line in f if line.startswith("Cpus_allowed_list")}
    except (FileNotFoundError, ProcessLookupError):
        pass  # a thread that has just ended
print(basics.local_rank(), *sorted(allowed, key=len))
basics.shutdown()
"""


class RealStartTest(RealJobTestCase):
    def test_who_has_not_called_init_is_named(self):
        go = os.path.join(self.dir, "go")
        wait = ("import os, time\nif os.environ['MAYPOLE_RANK'] in '13':\n  while not os.path.exists(%r): time.sleep(0.01)\n" %
                go)
        job = self.start("-np", "4", "--nodes", "2", PYTHON, "-c", wait + MEET)
        line = job.stderr.readline()
        while line and " 2 of 4 " not in line:  # ranks that wait say so, too
            line = job.stderr.readline()
        self.assertEqual(line, "maypolerun: 2 of 4 ranks have called init(); waiting for node0 (rank 1), node1 (rank 3)\n")
        open(go, "w").close()
        out, err = job.communicate(timeout=60)
        own = [line for line in err.splitlines() if not line.startswith("[")]
        self.assertEqual((job.returncode, own), (0, ["maypolerun: all 4 ranks have called init()"]))
        self.assertEqual(sorted(out.splitlines()), ["[%d]<stdout>:met 4" % r for r in range(4)])

    def test_progress_threads_on_chosen_processors(self):
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            self.skipTest("one processor")
        chosen = "%d,%d" % tuple(allowed[:2])
        for args, variables in ((["--thread-affinity", chosen], {}), ([], {"HOROVOD_THREAD_AFFINITY": chosen})):
            rc, out, err = self.run_job("-np", "2", *args, PYTHON, "-c", THREADS, **variables)
            self.assertEqual(rc, 0, err)
            for rank, line in enumerate(sorted(out.splitlines())):
                words = line.split(">:")[1].split()
                self.assertEqual(words[:2], [str(rank), str(allowed[rank])])
                self.assertEqual(len(words), 3)  # the other threads may use all
        rc, _, err = self.run_job("-np", "2", PYTHON, "-c", THREADS, MAYPOLE_THREAD_AFFINITY="0")
        self.assertEqual(rc, 1)
        self.assertIn("ValueError: MAYPOLE_THREAD_AFFINITY names 1 processor(s), but 2 ranks run on this node: give one "
                      "for each", err)
        rc, _, err = self.run_job("-np", "2", PYTHON, "-c", THREADS, MAYPOLE_THREAD_AFFINITY="0,60000")
        self.assertEqual(rc, 1)
        self.assertIn("the thread of local rank 1 cannot run on processor 60000", err)
        rc, _, err = self.run_job("-np", "2", PYTHON, "-c", THREADS, HOROVOD_THREAD_AFFINITY="all")
        self.assertEqual((rc, err), (2, "maypolerun: HOROVOD_THREAD_AFFINITY='all': expected the numbers of processors, "
                                     "separated by commas, one for each rank of a node\n"))

    def test_what_is_logged(self):
        verbose = {"HOROVOD_LOG_LEVEL": "info"}
        rc, _, err = self.run_job("-np", "2", PYTHON, "-c", MEET, **verbose)
        self.assertEqual(rc, 0, err)
        self.assertRegex(err, r"(?m)^\[coordinator\] time=\S+ level=info program=maypole-coordinator .*event=epoch_start")
        rc, _, err = self.run_job("-np", "2", PYTHON, "-c", MEET, HOROVOD_LOG_HIDE_TIME="1", **verbose)
        self.assertEqual(rc, 0, err)
        self.assertRegex(err, r"(?m)^\[coordinator\] level=info program=maypole-coordinator .*event=epoch_start")
        self.assertRegex(err, r"(?m)^\[node0\] level=info program=maypole-executor ")
        self.assertNotIn("time=", err)
        rc, _, err = self.run_job("-np", "2", "--log-level=WARNING", PYTHON, "-c", MEET, **verbose)
        self.assertEqual((rc, err), (0, ""))


if __name__ == "__main__":
    concurrently.main()
