"""Elastic jobs of maypolerun, with fake daemons and a fake ssh: processes that
die are replaced, and hosts come and go.

A process of these jobs writes its pid to a file up.PID. tests/elastic has real
jobs.
"""
import os
import re
import signal
import unittest

from client.launcher.testing.launch_fixture import FAKE_COORDINATOR, FAKE_SSH, FAKE_WORKER, LauncherTest, wait_for

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

    def start_job(self, *options, command=None):
        # No fake listens at this address; only one that is chosen among several is tried.
        return self.start(*options, "--coordinator", "192.0.2.1:4001", "--blacklist-cooldown-range", "1", "2",
                          *(command or ["sh", "-c", PROCESS % self.marker]))

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

    def working_process(self, job):
        return next(p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if self.parent_or_none(p) == job.pid)

    @staticmethod
    def state(pid):
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0]

    def open_files(self, job):
        """The paths that maypolerun's working process has open."""
        pid = self.working_process(job)
        return [os.path.realpath("/proc/%d/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%d/fd" % pid)]

    def parent_or_none(self, pid):
        try:
            return self.parent(pid)
        except OSError:
            return None

    def test_the_output_files_of_a_replaced_process_are_closed(self):
        job = self.start_job("-np", "2", "--min-np", "1", "--output-filename", os.path.join(self.dir, "out"))
        before = self.wait_for_processes(2)
        self.assertEqual(len([p for p in self.open_files(job) if "/out/rank." in p]), 4)
        os.kill(min(before), signal.SIGKILL)
        self.wait_for_processes(2, but=[min(before)])
        self.assertEqual(len([p for p in self.open_files(job) if "/out/rank." in p]), 4)
        self.finish(job)

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

    def test_a_command_with_arguments_finds_the_hosts(self):
        self.write("hosts of zone a", "localhost:2\n")
        script = self.write("discover", "#!/bin/sh\n[ $# = 2 ] && cat \"$2\"\n")
        for command in ("%s --zone '%s/hosts of zone a'", "ZONE='%s/hosts of zone a' && %s --zone \"$ZONE\""):
            paths = (script, self.dir) if command.startswith("%") else (self.dir, script)
            job = self.start_job("--min-np", "2", "--host-discovery-script", command % paths)
            self.wait_for_processes(2)
            self.finish(job)
            os.remove(os.path.join(self.dir, "go"))

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

    def test_names_of_this_machine_are_one_host(self):
        hosts = self.write("hosts", "localhost:1\n")
        script = self.write("discover", "#!/bin/sh\ncat %s; : >>$FAKE_DIR/runs.$$\n" % hosts)
        job = self.start_job("--min-np", "1", "--max-np", "1", "--host-discovery-script", script)
        before = self.wait_for_processes(1)
        self.write("hosts", "127.0.0.1:1\n")
        self.wait_for_runs(3)
        self.assertEqual(self.up(), before)
        _, err = self.finish(job)
        self.assertEqual(err, "")

    def wait_for_runs(self, n):
        """Waits until the script has run n more times."""
        runs = lambda: len([name for name in os.listdir(self.dir) if name.startswith("runs.")])
        before = runs()
        wait_for(lambda: runs() >= before + n, "%d runs of the script" % n)

    def test_nonsense_of_the_script_changes_nothing(self):
        for nonsense, said in (("h" * 3000, "its output:1: 'h{64}...' is not a hostname"), ("192.0.2.9:65", "192.0.2.9 has 65 slots"),
                               ("a b c", "its output:1: 'a b c': expected 'HOST slots=N'"), ("\x1b[2J", r"its output:1: '\?\[2J' is not a hostname"),
                               ("# nobody", "discover: has printed no host")):
            hosts = self.write("hosts", "localhost:1\n")
            script = self.write("discover", "#!/bin/sh\ncat %s\n" % hosts)
            job = self.start_job("--min-np", "1", "--host-discovery-script", script)
            before = self.wait_for_processes(1)
            self.write("hosts", nonsense + "\n")
            line = job.stderr.readline()
            self.assertRegex(line, said)
            self.assertLess(len(line), 600)
            self.assertNotIn("\x1b", line)
            self.assertRegex(line, "; the hosts stay as they are\n")
            self.assertEqual(self.up(), before)
            self.finish(job)
            os.remove(os.path.join(self.dir, "go"))

    def test_a_script_that_blocks_ends_with_the_job(self):
        script = self.write("discover", '#!/bin/sh\n[ -e "$FAKE_DIR/blocks" ] && { : >"$FAKE_DIR/blocked"; sleep %s; }\n'
                            "echo localhost:1\n" % self.marker)
        for signals in ((), (signal.SIGTERM,)):
            job = self.start_job("--min-np", "1", "--host-discovery-script", script)
            self.wait_for_processes(1)
            self.write("blocks", "")
            self.wait_for_file("blocked")
            if not signals:
                self.finish(job)
                for name in ("go", "blocks", "blocked"):
                    os.remove(os.path.join(self.dir, name))
            for number in signals:
                job.send_signal(number)
                job.communicate(timeout=60)
                self.assertEqual(job.returncode, 128 + number)
            self.assertEqual(self.processes(), [])

    def test_a_lost_host_is_started_again(self):
        job = self.start_job("--min-np", "2", "-H", "localhost:1,192.0.2.8:1")
        before = self.wait_for_processes(2)
        runners = self.nodes()  # the guard, and its child, which does the work
        os.kill(next(pid for pid in runners if self.parent(pid) in runners), signal.SIGKILL)
        wait_for(lambda: len([p for p in before if os.path.exists("/proc/%d" % p)]) == 1, "the end of its process")
        self.wait_for_processes(3)  # one file is of the process that was killed
        _, err = self.finish(job)
        self.assertRegex(err, "maypolerun: host 192.0.2.8: .*; the job goes on, and host 192.0.2.8 gets a new process")

    def test_a_process_whose_node_is_lost_before_it_starts(self):
        # It has a number and never runs; maypolerun still tells those after it apart.
        hosts = self.write("hosts", "192.0.2.8:1\n192.0.2.9:1\n")
        script = self.write("discover", '#!/bin/sh\n[ -e "$FAKE_DIR/hold" ] && echo $$ >"$FAKE_DIR/h" && mv "$FAKE_DIR/h" '
                            '"$FAKE_DIR/held"\nwhile [ -e "$FAKE_DIR/hold" ]; do sleep 0.02; done\nexec cat %s\n' % hosts)
        self.write("ssh", '#!/bin/sh\ncase "$*" in *192.0.2.9*) echo $$ >"$FAKE_DIR/ssh.pid" ;; esac\n' + FAKE_SSH)
        job = self.start_job("--min-np", "2", "--host-discovery-script", script)
        before = self.wait_for_processes(2)
        self.write("hold", "")
        self.wait_for_file("held")
        self.write("hosts", "192.0.2.8:1\n192.0.2.9:2\n")
        # It hears at the same time of one more slot of a host, for process 2, and of the host's loss.
        working, ssh = self.working_process(job), int(self.read("ssh.pid"))
        os.kill(working, signal.SIGSTOP)
        os.remove(os.path.join(self.dir, "hold"))
        for pid in sorted(self.nodes(), reverse=True):
            if ssh in (pid, self.parent(pid), self.parent(self.parent(pid))):
                os.kill(pid, signal.SIGKILL)
        for pid in (int(self.read("held")), ssh):
            wait_for(lambda: self.state(pid) == "Z", "the end of %d" % pid)
        os.kill(working, signal.SIGCONT)
        dead = wait_for(lambda: [pid for pid in before if not os.path.exists("/proc/%d" % pid)], "a process's end")
        self.wait_for_processes(3, but=dead)
        _, err = self.finish(job)
        self.assertIn("maypolerun: host 192.0.2.9: ", err)
        self.remove_directories()

    def test_a_process_that_cannot_be_started_costs_no_other(self):
        program = self.write("program", "#!/bin/sh\n" + PROCESS % self.marker + "\n")
        for hosts in ("localhost:2", "192.0.2.8:2"):
            job = self.start_job("-np", "2", "--min-np", "1", "-H", hosts, command=[program])
            before = self.wait_for_processes(2)
            os.rename(program, program + ".away")
            os.kill(min(before), signal.SIGKILL)
            said = ""
            while "exited with code 127" not in said:
                line = job.stderr.readline()
                self.assertNotEqual(line, "", said)
                said += line
            self.assertIn("program: No such file or directory", said)
            self.assertIn(max(before), self.up())
            self.assertTrue(os.path.exists("/proc/%d" % max(before)))
            os.rename(program + ".away", program)
            self.wait_for_processes(2, but=[min(before)])
            self.finish(job)
            os.remove(os.path.join(self.dir, "go"))
            os.remove(os.path.join(self.dir, "up.%d" % min(before)))

    def test_a_host_that_hangs_at_its_start_is_tried_again(self):
        self.write("ssh", '#!/bin/sh\n[ -e "$FAKE_DIR/second" ] || { : >"$FAKE_DIR/second"; exec sleep %s; }\n' % self.marker
                   + FAKE_SSH)
        job = self.start_job("--min-np", "2", "--start-timeout", "4", "-H", "localhost:1,192.0.2.8:1")
        self.wait_for_processes(2)
        _, err = self.finish(job)
        self.assertIn("maypolerun: host 192.0.2.8: no answer through ssh after 4 s (--start-timeout); the job goes on", err)

    def test_an_agent_that_ends_before_it_is_ready_is_tried_again(self):
        for host in ("localhost", "192.0.2.8"):
            for name in ("second", "go"):
                if os.path.exists(os.path.join(self.dir, name)):
                    os.remove(os.path.join(self.dir, name))
            self.write("maypole-worker", '#!/bin/sh\n[ -e "$FAKE_DIR/second" ] || { : >"$FAKE_DIR/second"; exit 3; }\n'
                       + FAKE_WORKER)
            job = self.start_job("--min-np", "1", "-H", host + ":1")
            self.wait_for_processes(1)
            _, err = self.finish(job)
            self.assertIn("maypolerun: host %s: its agent has ended; the job goes on" % host, err)

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

    def test_ctrl_c_while_a_host_hangs(self):
        job = self.start_job("--min-np", "2", "-H", "localhost:1,192.0.2.8:1")
        self.wait_for_processes(2)
        for pid in self.nodes():
            os.kill(pid, signal.SIGSTOP)
        job.send_signal(signal.SIGINT)
        _, err = job.communicate(timeout=30)
        self.assertEqual(job.returncode, 130, err)
        # What hung on the other host could not end anything itself.
        wait_for(lambda: not self.processes(), "the end of the other host's processes")
        self.remove_directories()

    def test_an_agent_that_was_killed_is_replaced(self):
        self.write("maypole-worker", FAKE_WORKER.replace('echo "socket', 'echo $$ >"$FAKE_DIR/$n.pid"; echo "socket'))
        for host in ("localhost", "192.0.2.8"):
            job = self.start_job("--min-np", "1", "-H", host + ":1")
            before = self.wait_for_processes(1)
            os.kill(int(self.read("node0.pid")), signal.SIGKILL)
            self.wait_for_file("node0.1.pid")
            self.assertEqual(self.up(), before)
            _, err = self.finish(job)
            self.assertRegex(err, r"node0 \(pid \d+\) was killed by signal 9 \(Killed\) and wrote nothing; another one is started\n")
            for name in ("go", "node0.pid", "node0.1.pid"):
                os.remove(os.path.join(self.dir, name))

    def test_a_coordinator_that_was_killed_is_replaced(self):
        job = self.start("-np", "2", "--min-np", "1", "sh", "-c", PROCESS % self.marker)
        before = self.wait_for_processes(2)
        coordinator = self.read("coordinator.pid")
        os.kill(int(coordinator), signal.SIGKILL)
        wait_for(lambda: self.read("coordinator.pid") not in ("", coordinator), "another coordinator")
        self.assertEqual(self.up(), before)
        _, err = self.finish(job)
        self.assertRegex(err, r"maypolerun: coordinator \(pid \d+\) was killed by signal 9 \(Killed\) and wrote nothing; "
                         "another one is started\n")

    def test_the_coordinators_end_is_the_jobs(self):
        # As after SIGTERM.
        self.write("maypole-coordinator", FAKE_COORDINATOR.replace(
            'exec sleep "$FAKE_SLEEP"', 'while [ ! -e "$FAKE_DIR/stop" ]; do sleep 0.01; done'))
        job = self.start("-np", "2", "--min-np", "1", "sh", "-c", PROCESS % self.marker)
        self.wait_for_processes(2)
        self.write("stop", "")
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 1, err)
        self.assertRegex(err, r"maypolerun: coordinator \(pid \d+\) exited with code 0 and wrote nothing; stopping the job\n")

    def test_a_script_that_cannot_run(self):
        for arguments in ("", " --zone a"):
            rc, _, err = self.run_job("--min-np", "1", "--host-discovery-script", self.dir + "/nowhere" + arguments,
                                      "true")
            self.assertEqual((rc, err), (1, "maypolerun: cannot run --host-discovery-script %s/nowhere: No such file or "
                                         "directory\n" % self.dir))

    def test_too_few_hosts(self):
        script = self.write("discover", "#!/bin/sh\necho localhost:1\n")
        rc, _, err = self.run_job("--min-np", "2", "--host-discovery-script", script, "--elastic-timeout", "1", "true")
        self.assertEqual(rc, 1, err)
        self.assertTrue(re.search(r"only 1 of at least 2 processes could run for 1 s \(--elastic-timeout\)", err), err)


if __name__ == "__main__":
    unittest.main()
