"""How jobs of maypolerun end: failures, signals, kill -9; with fake daemons.

tearDown() of LauncherTest checks after each test that no process and no
directory is left behind.
"""
import os
import pty
import signal
import subprocess
import time

import concurrently
from client.launcher.testing.launch_fixture import FAKE_COORDINATOR, RANK_IS_UP, LauncherTest, wait_for


class FailureTest(LauncherTest):
    def test_the_failing_ranks_words_come_last(self):
        # Rank 0 fails because of rank 1, and prints more lines.
        self.write("rank.sh", """
if [ $MAYPOLE_RANK = 1 ]; then
  echo "Traceback (most recent call last):" >&2
  echo "ValueError: bad batch" >&2
  exit 3
fi
while kill -0 $(cat "$FAKE_DIR/pid1") 2>/dev/null; do :; done
echo "rank 1 was lost" >&2
exit 1
""")
        rc, _, err = self.run_job("-np", "2", "sh", "-c",
                                  '[ $MAYPOLE_RANK = 1 ] && echo $$ >"$FAKE_DIR/p" && mv "$FAKE_DIR/p" "$FAKE_DIR/pid1"; '
                                  'while [ ! -e "$FAKE_DIR/pid1" ]; do :; done; exec sh "$FAKE_DIR/rank.sh"')
        self.assertEqual(rc, 3, err)
        lines = err.splitlines()
        self.assertIn("[0]<stderr>:rank 1 was lost", lines)
        self.assertRegex(lines[-4], r"^maypolerun: rank 1 \(pid \d+, node0\): its last lines of stderr:$")
        self.assertEqual(lines[-3:-1], ["[1]<stderr>:Traceback (most recent call last):",
                                        "[1]<stderr>:ValueError: bad batch"])
        self.assertRegex(lines[-1], r"^maypolerun: rank 1 \(pid \d+, node0\) exited with code 3$")
        said = [l for l in lines if "rank 1 (" in l and "exited with code" in l]
        self.assertEqual(len(said), 2, err)  # when it happened, and at the end

    def test_last_words_that_stand_last_are_not_repeated(self):
        rc, _, err = self.run_job("-np", "2", "sh", "-c", """
[ $MAYPOLE_RANK = 0 ] && exit 0
echo "Traceback (most recent call last):" >&2
echo "ValueError: bad batch" >&2
exit 3
""")
        self.assertEqual(rc, 3, err)
        self.assertEqual(err.count("ValueError: bad batch"), 1, err)
        self.assertNotIn("its last lines", err)
        self.assertRegex(err.splitlines()[-1], r"^maypolerun: rank 1 .* exited with code 3$")

    def test_a_start_timeout_is_not_blamed_on_the_rank_that_waited(self):
        rc, _, err = self.run_job("-np", "2", "sh", "-c", """
[ $MAYPOLE_RANK = 1 ] && exec sleep %s
echo "Traceback (most recent call last):" >&2
echo "maypole.common.exceptions.HorovodInternalError: start timeout: rank 1 is missing" >&2
exit 1
""" % self.marker)
        self.assertEqual(rc, 1, err)
        self.assertRegex(err.splitlines()[-1], r"rank 0 .* exited with code 1 after a Maypole error, which another "
                         r"rank may have caused: rank 1 \(pid \d+, node0\) had to be stopped$")

    def test_a_killed_rank(self):
        rc, _, err = self.run_job("-np", "2", "sh", "-c", "[ $MAYPOLE_RANK = 0 ] && kill -KILL $$; exit 0")
        self.assertEqual(rc, 137)
        self.assertRegex(err.splitlines()[-1], r"rank 0 .* was killed by signal 9 \(Killed\)$")

    def test_a_rank_that_leaves_quietly_is_the_cause(self):
        # Rank 0 gets Maypole's error and ends before rank 1, the cause.
        self.write("rank.sh", """
if [ $MAYPOLE_RANK = 1 ]; then
  while [ ! -e "$FAKE_DIR/zero_is_gone" ]; do :; done
  exit 3
fi
echo "Traceback (most recent call last):" >&2
echo "maypole.common.exceptions.HorovodInternalError: rank 1 has shut down" >&2
exit 1
""")
        job = self.start("-np", "2", "sh", os.path.join(self.dir, "rank.sh"))
        seen = ""
        while "exited with code 1; waiting" not in seen:
            seen += job.stderr.readline()
        self.write("zero_is_gone", "")
        err = job.stderr.read()
        self.assertEqual(job.wait(timeout=60), 3)
        self.assertRegex(err.splitlines()[-1], r"rank 1 .* exited with code 3$")

    def test_one_rank_keeps_its_exit_code(self):
        rc, _, err = self.run_job("-np", "1", "sh", "-c", "exit 9")
        self.assertEqual(rc, 9)
        self.assertRegex(err, r"^maypolerun: rank 0 \(pid \d+, node0\) exited with code 9\n$")

    def test_ranks_that_hang_are_stopped(self):
        start = time.monotonic()
        rc, _, err = self.run_job("-np", "2", "sh", "-c",
                                  "[ $MAYPOLE_RANK = 1 ] && exit 4; sleep %s" % self.marker)
        self.assertEqual(rc, 4)
        self.assertLess(time.monotonic() - start, 10)
        self.assertIn("waiting up to 5 s", err)

    def test_who_waits_for_a_rank_that_left_early_is_told(self):
        wait = '[ $MAYPOLE_RANK = 1 ] && exit 0; echo $$ >"$FAKE_DIR/%s.$MAYPOLE_RANK"; ' \
               'while [ ! -e "$FAKE_DIR/go" ]; do sleep 0.01; done'
        ends_well = self.start("-np", "3", "sh", "-c", wait % "well")
        is_killed = self.start("-np", "2", "sh", "-c", wait % "killed")
        said = ends_well.stderr.readline()  # after 10 s
        self.assertEqual(is_killed.stderr.readline(), "maypolerun: rank 1 exited with code 0; waiting for rank 0\n")
        os.kill(int(self.read("killed.0")), signal.SIGKILL)
        _, err = is_killed.communicate(timeout=60)
        self.assertEqual(is_killed.returncode, 137)
        self.assertRegex(err, r"^maypolerun: rank 0 \(pid \d+, node0\) was killed by signal 9 \(Killed\); "
                         r"long before, rank 1 \(pid \d+, node0\) had exited with code 0\n$")
        self.write("go", "")
        self.assertEqual(said, "maypolerun: rank 1 exited with code 0; waiting for ranks 0,2\n")
        self.assertEqual(ends_well.wait(timeout=60), 0)
        self.assertEqual(ends_well.stderr.read(), "")

    def test_a_rank_that_left_and_takes_its_time_to_end_is_named(self):
        # Rank 0 gets Maypole's error and ends before rank 1, which left with 0.
        self.write("rank.sh", """
if [ $MAYPOLE_RANK = 1 ]; then
  while [ ! -e "$FAKE_DIR/zero_is_gone" ]; do :; done
  exit 0
fi
echo "Traceback (most recent call last):" >&2
echo "maypole.common.exceptions.HorovodInternalError: rank 1 has shut down" >&2
exit 1
""")
        job = self.start("-np", "2", "sh", os.path.join(self.dir, "rank.sh"))
        seen = ""
        while "exited with code 1; waiting" not in seen:
            seen += job.stderr.readline()
        self.write("zero_is_gone", "")
        err = job.stderr.read()
        self.assertEqual(job.wait(timeout=60), 1)
        self.assertRegex(err.splitlines()[-1], r"^maypolerun: rank 0 \(pid \d+, node0\) exited with code 1 after a Maypole error, "
                         r"which another rank may have caused: rank 1 \(pid \d+, node0\) exited with code 0$")

    def test_what_ranks_leave_behind_is_ended(self):
        rc, _, err = self.run_job("-np", "2", "sh", "-c", "setsid sleep %s & sleep %s & exit 0" % ((self.marker,) * 2))
        self.assertEqual(rc, 0, err)

    def test_a_daemon_that_cannot_start(self):
        self.write("maypole-coordinator", "#!/bin/sh\necho 'port is taken' >&2\nexit 5\n")
        rc, out, err = self.run_job("-np", "2", "echo", "never")
        self.assertEqual((rc, out), (1, ""))
        lines = err.splitlines()
        self.assertEqual(lines[0], "[coordinator] port is taken")
        self.assertRegex(lines[1], r"^maypolerun: coordinator \(pid \d+\) exited with code 5 before it was ready; ")
        self.assertEqual(lines[-1], "maypolerun: the job was not started")

    def test_a_daemon_that_is_never_ready(self):
        self.write("maypole-worker", "#!/bin/sh\nexec sleep %s\n" % self.marker)
        rc, _, err = self.run_job("-np", "2", "--nodes", "2", "--start-timeout", "1", "true")
        self.assertEqual(rc, 1)
        self.assertRegex(err.splitlines()[-1], r"node0 \(pid \d+\), node1 \(pid \d+\) not ready after 1 s")

    def test_a_missing_daemon(self):
        os.unlink(os.path.join(self.dir, "maypole-worker"))
        rc, _, err = self.run_job("-np", "2", "true")
        self.assertEqual(rc, 1)
        self.assertIn("maypole-worker is neither beside maypolerun", err)

    def test_a_daemon_killed_on_the_way(self):
        job = self.start("-np", "2", "sh", "-c", RANK_IS_UP + 'while [ ! -e "$FAKE_DIR/go" ]; do sleep 0.01; done; '
                         "echo lost the agent >&2; exit 7")
        self.wait_for_ranks(2)
        agent = int(self.read("node0.pid"))
        os.kill(agent, signal.SIGKILL)
        said = ""
        while "was killed by signal 9" not in said:
            said += job.stderr.readline()
        self.write("go", "")
        err = job.stderr.read()
        self.assertEqual(job.wait(timeout=60), 7, err)
        self.assertRegex(err, r"before that, node0 \(pid %d\) was killed by signal 9" % agent)
        self.assertRegex(err.splitlines()[-1], r"rank \d .* exited with code 7$")

    def test_a_job_that_does_not_need_its_lost_daemon_goes_on(self):
        job = self.start("-np", "2", "sh", "-c", RANK_IS_UP + 'while [ ! -e "$FAKE_DIR/go" ]; do sleep 0.01; done')
        self.wait_for_ranks(2)
        agent = int(self.read("node0.pid"))
        os.kill(agent, signal.SIGKILL)
        said = ""
        while "was killed by signal 9" not in said:
            said += job.stderr.readline()
        self.write("go", "")
        err = job.stderr.read()
        self.assertEqual(job.wait(timeout=60), 0, err)
        self.assertRegex(
            err, r"^maypolerun: all ranks exited with code 0, but node0 \(pid %d\) was" % agent)

    def start_and_kill_the_coordinator(self, *options):
        """A job whose ranks end when the test writes `go`; returns it, and the coordinator's pid."""
        job = self.start("-np", "2", *options, "sh", "-c",
                         RANK_IS_UP + 'while [ ! -e "$FAKE_DIR/go" ]; do sleep 0.01; done')
        self.wait_for_ranks(2)
        coordinator = int(self.read("coordinator.pid"))
        os.kill(coordinator, signal.SIGKILL)
        return job, coordinator

    def test_a_coordinator_that_was_killed_is_started_again_at_its_address(self):
        for times in (1, 2):
            job, coordinator = self.start_and_kill_the_coordinator("--coordinator-flag=--resume_timeout=7s")
            for number in range(times):
                if number > 0:
                    os.kill(coordinator, signal.SIGKILL)
                wait_for(lambda: self.read("coordinator.pid") not in ("", "%d\n" % coordinator), "another coordinator")
                coordinator = int(self.read("coordinator.pid"))
            arguments = self.read("coordinator.args").split()
            self.write("go", "")
            _, err = job.communicate(timeout=60)
            self.assertEqual(job.returncode, 0, err)
            self.assertEqual(arguments[-2:], ["--listen=127.0.0.1:1001", "--metrics=127.0.0.1:1002"])
            self.assertIn("--resume_timeout=7s", arguments)
            lines = err.splitlines()
            self.assertEqual(len(lines), times, err)
            for line in lines:
                self.assertRegex(line, r"^maypolerun: coordinator \(pid \d+\) was killed by signal 9 \(Killed\).*; "
                                 "another one is started$")
            for name in ("go", "rank.0", "rank.1"):
                os.remove(os.path.join(self.dir, name))

    def test_a_coordinator_that_cannot_be_started_again_ends_the_job(self):
        # Its port has been taken, or it ends in good order, as after SIGTERM.
        again = FAKE_COORDINATOR.replace("#!/bin/sh\n", '#!/bin/sh\n[ -e "$FAKE_DIR/go" ] || case "$*" in *--listen=*--listen=*) '
                                         "echo 'port is taken' >&2; exit 5 ;; esac\n")
        self.write("maypole-coordinator", again)
        for options in (("--nodes", "2"), ()):  # the ranks have not called init()
            start = time.monotonic()
            job, _ = self.start_and_kill_the_coordinator(*options)
            _, err = job.communicate(timeout=60)
            self.assertEqual(job.returncode, 1, err)
            self.assertLess(time.monotonic() - start, 30)
            self.assertRegex(err, r"(?m)^\[coordinator\] port is taken$")
            self.assertRegex(err.splitlines()[-1], r"^maypolerun: coordinator \(pid \d+\) exited with code 5 before it was "
                             r"ready; its last lines begin with \[coordinator\]; stopping the job$")
            for name in ("rank.0", "rank.1"):
                os.remove(os.path.join(self.dir, name))


class SignalTest(LauncherTest):
    # It ignores signals, and has one child in its group and one that has left it.
    STUBBORN = "trap '' INT TERM; sleep %(m)s & setsid sleep %(m)s & " + RANK_IS_UP + "while :; do sleep %(m)s; done"

    def start_stubborn(self, **kwargs):
        job = self.start("-np", "2", "--nodes", "2", "sh", "-c", self.STUBBORN % {"m": self.marker}, **kwargs)
        self.wait_for_ranks(2)
        return job

    def stop(self, job, sig):
        start = time.monotonic()
        os.kill(job.pid, sig)
        rc = job.wait(timeout=60)
        took = time.monotonic() - start
        # When maypolerun has ended, no process of it may be alive.
        self.assertEqual(self.processes(), [])
        return rc, took

    def test_ctrl_c_ends_stubborn_ranks_within_2_s(self):
        rc, took = self.stop(self.start_stubborn(), signal.SIGINT)
        self.assertEqual(rc, 130)
        self.assertLess(took, 2.0)

    def test_term_ends_stubborn_ranks_after_the_stop_timeout(self):
        job = self.start("-np", "2", "--nodes", "2", "--stop-timeout", "1", "sh", "-c",
                         self.STUBBORN % {"m": self.marker})
        self.wait_for_ranks(2)
        rc, took = self.stop(job, signal.SIGTERM)
        self.assertEqual(rc, 143)
        self.assertTrue(1.0 <= took < 3.0, took)

    # A checkpoint at SIGTERM takes longer than Ctrl-C leaves, and needs a helper: it ends only when that has answered.
    # Both are /bin/sh, as a DataLoader's worker is the same Python as its rank.
    SAVES = """
trap 'echo $1 >"$FAKE_DIR/asked.$MAYPOLE_RANK"' %s
sh -c 'while [ ! -e "$FAKE_DIR/asked.$MAYPOLE_RANK" ]; do sleep 0.02; done; sleep 2; : >"$FAKE_DIR/helped.$MAYPOLE_RANK"' & h=$!
: >"$FAKE_DIR/rank.$MAYPOLE_RANK"
while [ ! -e "$FAKE_DIR/helped.$MAYPOLE_RANK" ]; do kill -0 $h || exit 9; sleep 0.02; done
echo saved
"""

    def save(self, sig, name, command):
        job = self.start("-np", "2", *command(self.write("saves.sh", self.SAVES % name)))
        self.wait_for_ranks(2)
        os.kill(job.pid, sig)
        if sig == signal.SIGTERM:
            time.sleep(0.5)
            os.kill(job.pid, sig)  # as some schedulers do
        out, err = job.communicate(timeout=60)
        self.assertEqual(sorted(out.splitlines()), ["[0]<stdout>:saved", "[1]<stdout>:saved"], err)
        return job.returncode, err

    def test_term_leaves_ranks_time_and_their_helpers(self):
        # Directly, and below a shell without a handler.
        for command in (lambda path: ("sh", path),
                        lambda path: ("bash", "-c", "sh %s; exit $?" % path)):
            for name in os.listdir(self.dir):
                if name.startswith(("rank.", "asked.", "helped.")):
                    os.unlink(os.path.join(self.dir, name))
            rc, err = self.save(signal.SIGTERM, "TERM", command)
            self.assertEqual((rc, err), (143, "maypolerun: got signal 15 (Terminated): stopping the job; ranks have 30 s "
                                         "to end (--stop-timeout)\n"))

    def test_usr1_and_usr2_go_to_the_ranks(self):
        for sig, name in ((signal.SIGUSR1, "USR1"), (signal.SIGUSR2, "USR2")):
            self.assertEqual(self.save(sig, name, lambda path: ("sh", path)), (0, ""))
            for file in os.listdir(self.dir):
                if file.startswith(("rank.", "asked.", "helped.")):
                    os.unlink(os.path.join(self.dir, file))

    def test_ranks_that_are_killed_at_once_are_all_named(self):
        script = RANK_IS_UP + 'while [ ! -e "$FAKE_DIR/go" ]; do sleep 0.01; done; [ $MAYPOLE_RANK = 1 ] || kill -9 $$; exit 1'
        job = self.start("-np", "3", "sh", "-c", script)
        self.wait_for_ranks(3)
        self.write("go", "")
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 137)
        self.assertRegex(err.splitlines()[-1], r"^maypolerun: rank (0|2) \(pid \d+, node0\) was killed by signal 9 "
                         r"\(Killed\); rank (?!\1)[02] \(pid \d+, node0\) was killed by signal 9 \(Killed\)$")

    def test_ctrl_c_lets_ranks_clean_up(self):
        job = self.start("-np", "2", "sh", "-c", "trap 'echo cleaned; exit 0' INT; " + RANK_IS_UP +
                         "while :; do sleep 0.01; done")
        self.wait_for_ranks(2)
        os.kill(job.pid, signal.SIGINT)
        out, _ = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 130)
        self.assertEqual(sorted(out.splitlines()), ["[0]<stdout>:cleaned", "[1]<stdout>:cleaned"])

    def test_ctrl_c_while_nobody_reads(self):
        job = self.start("-np", "2", "sh", "-c", RANK_IS_UP + "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyy; done")
        self.wait_for_ranks(2)
        rc, took = self.stop(job, signal.SIGINT)
        self.assertEqual(rc, 130)
        self.assertLess(took, 2.0)

    def start_unread(self):
        """Starts a job whose ranks and daemons end while nobody reads the end of its output."""
        script = RANK_IS_UP + "yes %s | head -n 1700" % ("y" * 60)  # 100 kB each; a pipe takes 64
        # The marker is the shell's $0: maypolerun's and its supervisor's command lines contain it.
        job = self.start("-np", "2", "sh", "-c", script, self.marker)
        self.wait_for_ranks(2)
        wait_for(lambda: len(self.processes()) == 2, "the end of ranks and daemons")
        return job

    def test_term_while_nobody_reads_what_ended_ranks_have_written(self):
        rc, took = self.stop(self.start_unread(), signal.SIGTERM)
        self.assertEqual(rc, 143)
        self.assertLess(took, 2.0)

    def test_kill_9_while_nobody_reads_what_ended_ranks_have_written(self):
        job = self.start_unread()
        job.kill()
        job.wait()
        self.wait_until_none_lives()
        wait_for(lambda: not os.listdir(self.runtime), "the directory's end")

    def test_a_late_reader_gets_all_that_ended_ranks_have_written(self):
        job = self.start_unread()
        out, err = job.communicate(timeout=60)
        self.assertEqual((job.returncode, err), (0, ""))
        for rank in range(2):
            self.assertEqual(out.splitlines().count("[%d]<stdout>:%s" % (rank, "y" * 60)), 1700)

    def test_ctrl_c_while_daemons_start(self):
        self.write("maypole-coordinator", '#!/bin/sh\n: >"$FAKE_DIR/up"\nexec sleep %s\n' % self.marker)
        job = self.start("-np", "2", "true")
        self.wait_for_file("up")
        rc, took = self.stop(job, signal.SIGINT)
        self.assertEqual(rc, 130)
        self.assertLess(took, 2.0)

    def test_nohup(self):
        job = self.start("-np", "2", "sh", "-c", RANK_IS_UP + 'while [ ! -e "$FAKE_DIR/go" ]; do sleep 0.01; done',
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_ranks(2)
        os.kill(job.pid, signal.SIGHUP)
        self.write("go", "")
        self.assertEqual(job.wait(timeout=60), 0)

    def test_what_is_ignored_stays_ignored(self):
        ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1)

        def ignore():
            for sig in ignored:
                signal.signal(sig, signal.SIG_IGN)

        job = self.start("-np", "2", "sh", "-c", RANK_IS_UP + "exec sleep %s" % self.marker, preexec_fn=ignore)
        self.wait_for_ranks(2)
        for sig in ignored:
            os.kill(job.pid, sig)
        with self.assertRaises(subprocess.TimeoutExpired):
            job.wait(timeout=0.5)
        rc, took = self.stop(job, signal.SIGTERM)
        self.assertEqual(rc, 143)
        self.assertLess(took, 2.0)  # the ranks have no handler

    def test_kill_9_of_maypolerun(self):
        job = self.start_stubborn()
        job.kill()
        job.wait()
        self.wait_until_none_lives()
        wait_for(lambda: not os.listdir(self.runtime), "the directory's end")

    def test_kill_9_as_soon_as_there_is_a_directory(self):
        for _ in range(20):
            job = self.start("-np", "2", "sleep", self.marker)
            while not os.listdir(self.runtime):
                self.assertIsNone(job.poll())
            job.kill()
            job.wait()
            self.wait_until_none_lives()
            wait_for(lambda: not os.listdir(self.runtime), "the directory's end")

    def test_kill_9_of_the_supervisor(self):
        job = self.start_stubborn()
        with open("/proc/%d/task/%d/children" % (job.pid, job.pid)) as f:
            os.kill(int(f.read().split()[0]), signal.SIGKILL)
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 137)
        self.assertIn("the supervisor", err)
        self.assertEqual(self.processes(), [])


class TerminalTest(LauncherTest):
    """On a terminal with a shell's job control: rank 0 can read from it, and Ctrl-C works."""

    def start_at_terminal(self, *args):
        pid, fd = pty.fork()
        if pid == 0:
            os.execve(self.maypolerun, [self.maypolerun, *args], self.env)
        self.addCleanup(os.close, fd)
        return pid, fd

    @staticmethod
    def read_until(fd, text):
        seen = b""
        while text not in seen:
            seen += os.read(fd, 1000)
        return seen

    def test_rank_0_reads_the_terminal(self):
        pid, fd = self.start_at_terminal("-np", "2", "sh", "-c",
                                         "[ $MAYPOLE_RANK = 0 ] && { printf 'name? '; read x; echo got $x; }; exit 0")
        self.read_until(fd, b"name? ")
        os.write(fd, b"ada\n")
        self.read_until(fd, b"got ada")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)

    def test_ctrl_c_reaches_each_rank_once(self):
        script = ("trap 'echo int >>\"$FAKE_DIR/ints.$MAYPOLE_RANK\"; n=1' INT; %s"
                  "while [ -z \"$n\" ]; do sleep 0.01; done; sleep 0.2; exit 0" % RANK_IS_UP)
        pid, fd = self.start_at_terminal("-np", "2", "sh", "-c", script)
        self.wait_for_ranks(2)
        os.write(fd, b"\x03")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 130)
        self.assertEqual(self.read("ints.0"), "int\n")
        self.assertEqual(self.read("ints.1"), "int\n")


if __name__ == "__main__":
    concurrently.main()
