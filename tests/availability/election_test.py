"""Several coordinators with three real etcd members: coordinators and members die."""

import os
import signal
import subprocess
import time
import unittest

import harness
from coordinators import CTL, Group
from etcd_cluster import EtcdCluster, free_ports, wait_for

TTL = 1  # seconds
# While etcd elects a leader of its own, no lease can be renewed: this may take
# two election timeouts, and a call that waits for the dead member.
LONG_TTL = 3
LEADERSHIP_LOST = 75  # exit status


class ElectionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.etcd = cls.enterClassContext(EtcdCluster(3))

    def setUp(self):
        self.etcd.start_dead()

    def group(self, ttl=TTL):
        """Coordinators of this test only."""
        group = Group(self.etcd, "/maypole/" + self.id().rpartition(".")[2], ttl)
        self.addCleanup(group.__exit__)
        return group

    def test_another_leads_when_the_leader_is_killed(self):
        group = self.group()
        for _ in range(3):
            group.start()
        first, _ = group.leader()
        self.assertEqual(len(group.standbys(first)), 2)
        term = first.term()
        first.signal(signal.SIGKILL)
        first.wait()
        second, seconds = group.leader()
        self.assertLess(seconds, TTL + 2)
        self.assertGreater(second.term(), term)

    def test_a_leader_that_is_told_to_end_hands_over(self):
        group = self.group()
        first = group.start()
        group.leader()
        second = group.start()
        group.standbys(first)
        stream = group.stream(first, "j", "n0")
        self.assertRegex(stream.next(), r"^welcome [1-9]\d*$")
        first.signal(signal.SIGTERM)
        self.assertEqual(first.wait(), 0)
        # No end of the epoch: executors go to the next leader.
        self.assertRegex(stream.next(), r"^end [1-9]")
        leader, _ = group.leader()
        self.assertIs(leader, second)

    def test_a_standby_refuses_executors_and_names_the_leader(self):
        group = self.group()
        first = group.start()
        group.leader()
        second = group.start()
        group.standbys(first)
        unavailable = 14
        self.assertEqual(
            group.stream(second, "j", "n0").next(),
            f"end {unavailable} the coordinator {second.listen} is a standby; call the leader, {first.listen}",
        )
        self.assertEqual(second.term(), 0)

    def stopped_start(self, group, leader, job):
        """Stops the leader, and then sends what completes the start of a job.

        Returns the streams of its two nodes.
        """
        streams = [group.stream(leader, job, node) for node in ("n0", "n1")]
        for s in streams:
            self.assertRegex(s.next(), r"^welcome ")
        streams[0].ready(2, 0)
        wait_for("the node is ready", lambda: f"event=ranks_ready job={job} " in leader.log())
        leader.stop()
        streams[1].ready(2, 1)
        return streams

    def test_a_leader_that_was_paused_beyond_its_lease_writes_nothing(self):
        group = self.group()
        first = group.start()
        group.leader()
        group.start()
        group.standbys(first)
        # Within its lease it goes on.
        streams = self.stopped_start(group, first, "a")
        first.signal(signal.SIGCONT)
        for s in streams:
            self.assertEqual(s.next(), "epoch_start")
        streams = self.stopped_start(group, first, "b")
        second, seconds = group.leader(group.all[1:])
        self.assertLess(seconds, TTL + 2)
        first.signal(signal.SIGCONT)
        self.assertEqual(first.wait(), LEADERSHIP_LOST, first.log())
        for s in streams:
            self.assertRegex(s.next(), r"^end [1-9]")
        self.assertIn("event=leadership_lost", first.log())
        self.assertTrue(second.leads())
        # Started again, it is a standby.
        third = group.start()
        group.standbys(second)
        self.assertEqual(third.term(), 0)

    def test_a_dead_member_of_etcd_changes_nothing(self):
        group = self.group(LONG_TTL)
        first = group.start()
        group.leader()
        group.start()
        group.standbys(first)
        term = first.term()
        for i in range(3):
            self.etcd.kill(i)
            time.sleep(LONG_TTL + 1)  # any lease from before has ended
            self.assertTrue(first.leads(), first.log())
            self.assertEqual(first.term(), term)
            self.etcd.start_dead()
        self.assertIsNone(first.process.poll())

    def test_without_a_quorum_nobody_leads(self):
        group = self.group()
        first = group.start()
        group.leader()
        second = group.start()
        group.standbys(first)
        term = first.term()
        for i in (0, 1):
            self.etcd.kill(i)
        begin = time.monotonic()
        self.assertEqual(first.wait(), LEADERSHIP_LOST)
        # A leader of etcd may grant leases until it has noticed.
        self.assertLess(time.monotonic() - begin, 2 * TTL + 1)
        self.assertRegex(first.log(), r'event=leadership_lost reason="its lease was not renewed')
        self.assertFalse(second.leads())
        self.etcd.start_dead()
        leader, _ = group.leader()
        self.assertIs(leader, second)
        self.assertGreater(second.term(), term)

    def ctl(self, coordinators, *arguments):
        return subprocess.run(
            [CTL, "--coordinator=" + coordinators, "--timeout=10", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )

    def test_maypolectl_finds_the_leader(self):
        group = self.group()
        first = group.start()
        group.leader()
        second = group.start()
        group.standbys(first)
        dead = f"127.0.0.1:{free_ports(1)[0]}"
        everybody = f"{dead},{second.listen},{first.listen}"
        status = self.ctl(everybody, "status")
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertIn(f"coordinator {first.listen} ", status.stdout)
        self.assertIn(f"it leads (term {first.term():.0f}); standbys: {second.listen}\n", status.stdout)
        self.assertIn(f"no answer from coordinator {dead}", status.stdout)
        self.assertEqual(self.ctl(everybody, "drain", "n9").returncode, 0)

        self.assertIn(f"it is a standby; {first.listen} leads", self.ctl(second.listen, "status").stdout)
        for command in (["jobs"], ["drain", "n9"], ["abort", "j"], ["events"]):
            refused = self.ctl(second.listen, *command)
            self.assertEqual(refused.returncode, 1, refused.stdout)
            self.assertIn("is a standby", refused.stderr)
            self.assertIn(first.listen, refused.stderr)
        nobody = self.ctl(f"{dead},{second.listen}", "status")
        self.assertEqual(nobody.returncode, 1)
        self.assertIn(f"no coordinator leads now: no answer from coordinator {dead}", nobody.stderr)
        self.assertIn(f"{second.listen} is a standby", nobody.stderr)

    def test_a_job_finds_the_leader(self):
        group = self.group()
        first = group.start()
        group.leader()
        second = group.start()
        group.standbys(first)
        dead = f"127.0.0.1:{free_ports(1)[0]}"
        addresses = f"--coordinator={dead},{second.listen},{first.listen}"
        rank = (
            "import numpy, maypole as hvd; hvd.init(); "
            "assert hvd.allreduce(numpy.ones(3), op=hvd.Sum).tolist() == [2.0] * 3; hvd.shutdown()"
        )
        with harness.Job(2, 2, launcher_args=[addresses], command=[harness.PYTHON, "-c", rank]) as job:
            job.wait(60)
            self.assertEqual(job.process.returncode, 0)
        self.assertIn("event=epoch_start", first.log())
        self.assertNotIn("event=epoch_start", second.log())

    def test_a_job_goes_on_with_the_next_leader(self):
        # Names that are new in each step need the coordinator.
        rank = """
import os, numpy, maypole as hvd
hvd.init()
for step in range(100):
    if step == 50 and hvd.rank() == 0:
        open(os.environ["MAYPOLE_TEST_DIR"] + "/half", "w").close()
    if step >= 50:
        go = numpy.full(1, os.path.exists(os.environ["MAYPOLE_TEST_DIR"] + "/go"), numpy.float64)
        while hvd.allreduce(go, op=hvd.Sum, name=f"go{step}")[0] == 0:
            go[0] = os.path.exists(os.environ["MAYPOLE_TEST_DIR"] + "/go")
    assert hvd.allreduce(numpy.full(3, step), op=hvd.Sum, name=f"t{step}").tolist() == [2 * step] * 3
hvd.shutdown()
"""
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
            with self.subTest(number):
                group = Group(self.etcd, f"/maypole/goes-on-{number}", TTL)
                self.addCleanup(group.__exit__)
                first = group.start()
                group.leader()
                second = group.start()
                group.standbys(first)
                addresses = f"--coordinator={first.listen},{second.listen}"
                with harness.Job(2, 2, launcher_args=[addresses], command=[harness.PYTHON, "-c", rank]) as job:
                    wait_for("half of the steps are done", lambda: os.path.exists(job.dir + "/half"))
                    if number == signal.SIGSTOP:
                        first.stop()
                    else:
                        first.signal(number)
                    group.leader([second])
                    if number == signal.SIGSTOP:
                        first.signal(signal.SIGCONT)
                        self.assertEqual(first.wait(), LEADERSHIP_LOST)
                    open(job.dir + "/go", "w").close()
                    job.wait(60)
                    self.assertEqual(job.process.returncode, 0)
                self.assertIn("event=job_recovered", second.log())

    def test_a_deleted_key_ends_the_leader(self):
        group = self.group()
        first = group.start()
        group.leader()
        self.etcd.control("del", f"/maypole/{self.id().rpartition('.')[2]}/leader")
        self.assertEqual(first.wait(), LEADERSHIP_LOST)
        self.assertIn("its key was deleted", first.log())


if __name__ == "__main__":
    unittest.main()
