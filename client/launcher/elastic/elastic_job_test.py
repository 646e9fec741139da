"""Elastic jobs of maypolerun, with fake daemons and a fake ssh: processes that
die are replaced, and hosts come and go.

A process of these jobs writes its pid to a file up.PID. tests/elastic has real
jobs.
"""
import os
import re
import signal
import unittest

from client.launcher.testing.launch_fixture import FAKE_SSH, LauncherTest, wait_for

# Ends well at SIGTERM, or when the file `go` is there.
PROCESS = ('trap "exit 0" TERM; : >"$FAKE_DIR/up.$$"; '
           'while [ ! -e "$FAKE_DIR/go" ]; do sleep 0.02; done; rm "$FAKE_DIR/up.$$"; : %s')
ENVIRONMENT = "echo $MAYPOLE_ELASTIC $MAYPOLE_MIN_SIZE $MAYPOLE_MAX_SIZE [$MAYPOLE_RANK$MAYPOLE_SIZE] $MAYPOLE_NODE"


class ElasticJobTest(LauncherTest):
    def setUp(self):
        super().setUp()
        self.write("ssh", FAKE_SSH)
        self.env["PATH"] = self.dir + os.pathsep + self.env["PATH"]
        self.env["SSH_CONNECTION"] = "192.0.2.1 1 192.0.2.7 22"

    def up(self):
        return {int(name[3:]) for name in os.listdir(self.dir) if name.startswith("up.")}

    def wait_for_processes(self, n, but=()):
        wait_for(lambda: len(self.up() - set(but)) == n, "%d processes" % n)
        return self.up() - set(but)

    def start_job(self, *options):
        # No fake listens at this address; only one that is chosen among several is tried.
        return self.start(*options, "--coordinator", "192.0.2.1:4001", "--blacklist-cooldown-range", "1", "2", "sh", "-c", PROCESS % self.marker)

    def finish(self, job):
        self.write("go", "")
        out, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 0, err)
        return out, err

    def test_what_processes_are_told(self):
        self.env["MAYPOLE_RANK"] = "7"  # of another job, in which this one runs
        rc, out, err = self.run_job("-np", "2", "--min-np", "1", "--max-np", "3", "sh", "-c", ENVIRONMENT)
        self.assertEqual((rc, err), (0, ""))
        lines = out.splitlines()
        self.assertIn("[0]<stdout>:1 1 3 [] node0", lines)
        self.assertGreaterEqual(len(lines), 2)  # nothing is started once one has ended well

    def test_a_killed_process_is_replaced(self):
        job = self.start_job("-np", "3", "--min-np", "2")
        before = self.wait_for_processes(3)
        dead = min(before)
        os.kill(dead, signal.SIGKILL)
        self.wait_for_processes(3, but=[dead])
        self.assertTrue(before - {dead} <= self.up())
        _, err = self.finish(job)
        self.assertRegex(err, r"maypolerun: process \d \(host localhost\) was killed by signal 9 \(Killed\); the job "
                         r"goes on, and host localhost gets a new process in 1 s\n")

    def test_hosts_come_and_go(self):
        hosts = self.write("hosts", "localhost:1\n")
        script = self.write("discover", "#!/bin/sh\ncat %s\n" % hosts)
        job = self.start_job("--min-np", "1", "--host-discovery-script", script, "--slots-per-host", "2")
        first = self.wait_for_processes(1)
        self.write("hosts", "localhost:1\n192.0.2.8\n")
        more = self.wait_for_processes(3)
        self.assertTrue(first < more)
        self.assertIn("--node=node1", self.read("node1.args"))
        self.write("hosts", "192.0.2.8\n")  # its processes leave when they like: at SIGTERM
        wait_for(lambda: not os.path.exists("/proc/%d" % min(first)), "the end of the process of localhost")
        self.assertTrue(all(os.path.exists("/proc/%d" % pid) for pid in more - first))
        _, err = self.finish(job)
        self.assertIn("maypolerun: host localhost is not listed any more", err)

    def test_a_script_that_fails_changes_nothing(self):
        hosts = self.write("hosts", "localhost:1\n")
        script = self.write("discover", "#!/bin/sh\n[ -e %s ] || { echo no list >&2; exit 3; }; cat %s\n" % (hosts, hosts))
        job = self.start_job("--min-np", "1", "--host-discovery-script", script)
        before = self.wait_for_processes(1)
        os.remove(hosts)
        line = job.stderr.readline()
        self.assertEqual(line, "maypolerun: --host-discovery-script %s: exited with code 3: no list; the hosts stay "
                         "as they are\n" % script)
        self.assertEqual(self.up(), before)
        self.finish(job)

    def test_a_lost_host_is_started_again(self):
        job = self.start_job("--min-np", "2", "-H", "localhost:1,192.0.2.8:1")
        before = self.wait_for_processes(2)
        runners = self.nodes()  # the guard, and its child, which does the work
        os.kill(next(pid for pid in runners if self.parent(pid) in runners), signal.SIGKILL)
        wait_for(lambda: len([p for p in before if os.path.exists("/proc/%d" % p)]) == 1, "the end of its process")
        self.wait_for_processes(3)  # one file is of the process that was killed
        _, err = self.finish(job)
        self.assertRegex(err, "maypolerun: host 192.0.2.8: .*; the job goes on, and host 192.0.2.8 gets a new process")

    def test_a_program_that_cannot_work_ends_the_job(self):
        rc, _, err = self.run_job("-np", "1", "--min-np", "1", "--blacklist-cooldown-range", "1", "1", "sh", "-c",
                                  "echo wrong >&2; exit 3")
        self.assertEqual(rc, 3, err)
        self.assertEqual(err.count("<stderr>:wrong"), 3, err)
        self.assertIn("processes have failed 3 times on every host", err)

    def test_the_number_of_changes_is_limited(self):
        job = self.start_job("-np", "2", "--min-np", "1", "--reset-limit", "0")
        os.kill(min(self.wait_for_processes(2)), signal.SIGKILL)
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 128 + signal.SIGKILL, err)
        self.assertRegex(err, "change 1 of the job's processes, and --reset-limit is 0")

    def test_ctrl_c(self):
        job = self.start_job("-np", "2", "--min-np", "1")
        self.wait_for_processes(2)
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 130, err)

    def test_too_few_hosts(self):
        script = self.write("discover", "#!/bin/sh\necho localhost:1\n")
        rc, _, err = self.run_job("--min-np", "2", "--host-discovery-script", script, "--elastic-timeout", "1", "true")
        self.assertEqual(rc, 1, err)
        self.assertTrue(re.search(r"only 1 of at least 2 processes could run for 1 s \(--elastic-timeout\)", err), err)


if __name__ == "__main__":
    unittest.main()
