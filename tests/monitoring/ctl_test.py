"""maypolectl against a real coordinator with real jobs: two maypoleruns, each with two agents."""

import json
import os
import pty
import pwd
import select
import shlex
import signal
import socket
import subprocess
import tempfile
import time
import tty
import unittest

import harness

CTL = os.path.join(harness.ROOT, "client/ctl/maypolectl")
COORDINATOR = os.path.join(harness.ROOT, "coordinator/maypole-coordinator")
SECRET = "open-sesame"


class CtlTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory(prefix="mp", dir="/tmp")
        self.addCleanup(self.dir.cleanup)
        self.secret_file = self.secret("secret", SECRET)
        read, write = os.pipe()
        self.coordinator = subprocess.Popen(
            [COORDINATOR, "--secret_file=" + self.secret_file, "--announce_fd=%d" % write, "--log_level=warning",
             "--frozen_nodes=0"],  # so that all operations are counted at once
            pass_fds=[write], env=harness.environment())
        self.addCleanup(self.end, self.coordinator)
        os.close(write)
        with os.fdopen(read) as announced:
            words = dict(word.split("=", 1) for word in announced.readline().split())
            self.address, self.metrics = words["listen"], words["metrics"]

    def end(self, process):
        if process.poll() is None:
            process.terminate()
        process.wait(20)

    def secret(self, name, text):
        path = os.path.join(self.dir.name, name)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write(text + "\n")
        return path

    def command(self, *args):
        return [CTL, "--coordinator", self.address, "--secret_file", self.secret_file] + list(args)

    def ctl(self, *args, status=0):
        """Runs maypolectl with pipes, where output is not cut; (stdout, stderr)."""
        done = subprocess.run(self.command(*args), env=harness.environment({"COLUMNS": "40", "TZ": "UTC"}),
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def on_terminal(self, *args, columns):
        """Runs maypolectl on a terminal; its output."""
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        tty.setraw(slave)
        ctl = subprocess.Popen(self.command(*args), env=harness.environment({"COLUMNS": str(columns), "TZ": "UTC"}),
                               stdout=slave, text=True)
        os.close(slave)
        out = b""
        while True:
            try:
                some = os.read(master, 65536)
            except OSError:  # the last writer has closed it
                break
            out += some
        self.assertEqual(ctl.wait(60), 0)
        return out.decode()

    def refused(self, *args, status=1):
        """Runs maypolectl, which must fail; its one line of error."""
        out, err = self.ctl(*args, status=status)
        self.assertEqual(out, "")
        self.assertTrue(err.startswith("maypolectl: "), err)
        self.assertEqual(err.count("\n"), 1, err)
        return err

    def jobs(self):
        """{job's name: its status}"""
        out, _ = self.ctl("status", "--json")
        return {j["job"]: j for j in json.loads(out)["jobs"]}

    def start(self, np=4, program="loop.py"):
        """Starts a job of two nodes that runs steps; returns it and its name."""
        before = self.jobs()
        job = harness.Job(np=np, nodes=2, program=program,
                          launcher_args=["--coordinator", self.address, "--secret-file", self.secret_file],
                          env={"MAYPOLE_STALL_CHECK_TIME_SECONDS": "1"})
        self.addCleanup(job.stop)
        for r in range(np):
            job.await_file("rank.%d.json" % r)
        new = set(self.jobs()) - set(before)
        self.assertEqual(len(new), 1)
        return job, new.pop()

    def steps(self, job, rank=0):
        return job.record(rank)["steps"]

    def await_steps(self, job):
        before = self.steps(job)
        harness.wait_until(lambda: self.steps(job) > before, 30, "another step")

    def line_of(self, text, first_words):
        for line in text.splitlines():
            if line.split()[:len(first_words)] == first_words:
                return line.split()
        self.fail("no line %s in\n%s" % (first_words, text))

    # --- Looking -------------------------------------------------------------

    def test_two_jobs_and_a_late_rank(self):
        a_job, a = self.start(4)
        b_job, b = self.start(2)
        out, _ = self.ctl("status")
        self.assertIn("2 jobs, 2 nodes, 6 running ranks\n", out)
        self.assertEqual(self.line_of(out, [a, "running"])[3:8], ["1", "4", "2", "negotiated", "-"])
        self.assertEqual(self.line_of(out, [b, "running"])[3:6], ["1", "2", "2"])
        self.assertEqual(self.line_of(out, ["node0"])[2:], ["127.0.0.1", "2", "3"])
        self.assertLessEqual(max(map(len, self.on_terminal("status", columns=80).splitlines())), 80)
        self.assertIn(a, self.on_terminal("status", columns=80))
        narrow = self.on_terminal("status", columns=50)
        self.assertIn("2 jobs, 2 nodes, 6 running ranks\n", narrow)
        table = narrow.split("\n\n")[1]  # below it a line may name the job, if something is pending
        self.assertIn("NODES", table)
        self.assertNotIn(a, table)
        out, _ = self.ctl("jobs")
        self.assertEqual(self.line_of(out, [a])[-2:], ["node0:0-1", "node1:2-3"])
        self.assertGreater(int(self.line_of(out, [a])[5]), 10)
        out, _ = self.ctl("ranks", "--each", a)
        self.assertNotIn(b, out)
        for r in range(4):
            self.assertEqual(self.line_of(out, [str(r)]),
                             [str(r), "node%d" % (r // 2), "running", str(a_job.rank_pid(r)), "-"])

        a_job.touch("hold.3")

        def late():
            out, _ = self.ctl("ranks", a)
            # Until its node reports more, all ranks there count as late.
            return out if any(line.split()[:3] == ["3", "node1", "late"] for line in out.splitlines()) else None

        out = harness.wait_until(late, 30, "a late rank")
        self.assertEqual(self.line_of(out, ["3"]),
                         ["3", "node1", "late", str(a_job.rank_pid(3)), "allreduce", "'grad'"])
        self.assertEqual(self.line_of(out, ["0-1"])[1:3], ["node0", "running"])
        out, _ = self.ctl("status")
        self.assertIn("%s: rank 3 (node node1, pid %d) keeps others waiting for allreduce 'grad'"
                      % (a, a_job.rank_pid(3)), " ".join(out.split()))
        self.assertIn("6 running ranks, 1 late\n", out)
        self.assertNotIn("late", self.ctl("ranks", b)[0])
        self.await_steps(b_job)
        os.unlink(os.path.join(a_job.dir, "hold.3"))
        harness.wait_until(lambda: "late" not in self.ctl("ranks", a)[0], 30, "no late rank")
        for job in (a_job, b_job):
            job.touch("end")
            job.check_ok()
        harness.wait_until(lambda: not self.jobs(), 20, "no jobs")
        self.assertEqual(self.ctl("jobs")[0], "no jobs\n")

    # --- Events --------------------------------------------------------------

    def test_a_follower_sees_an_epoch_start_and_a_killed_rank(self):
        follower = subprocess.Popen(self.command("events", "--follow", "--json"), stdout=subprocess.PIPE,
                                    env=harness.environment())
        self.addCleanup(follower.stdout.close)
        self.addCleanup(self.end, follower)
        self.rest = b""

        def next_event(kind):
            deadline = time.monotonic() + 60
            while True:
                line, newline, rest = self.rest.partition(b"\n")
                if newline:
                    self.rest = rest
                    event = json.loads(line)
                    if event["kind"] == kind:
                        return event
                    continue
                self.assertTrue(select.select([follower.stdout], [], [], max(0, deadline - time.monotonic()))[0],
                                "no event " + kind)
                more = os.read(follower.stdout.fileno(), 65536)
                self.assertTrue(more, "the events have ended")
                self.rest += more

        job, name = self.start(2)
        event = next_event("epoch_start")
        self.assertEqual((event["job"], event["level"]), (name, "info"))
        self.assertIn("size=2 nodes=2", event["text"])
        self.assertAlmostEqual(event["unix_seconds"], time.time(), delta=60)
        os.kill(job.rank_pid(1), signal.SIGKILL)
        event = next_event("rank_lost")
        self.assertEqual((event["job"], event["level"]), (name, "warning"))
        self.assertIn("node=node1 rank=1", event["text"])
        self.assertIn("rank 1 (node node1", next_event("epoch_end")["text"])
        job.wait(30)
        harness.wait_until(lambda: not self.jobs(), 20, "no jobs")
        # A later caller reads the same.
        out, _ = self.ctl("events", name)
        self.assertRegex(out, r"\d\d:\d\d:\d\d\.\d{3} info    %s epoch_start epoch=1 size=2 nodes=2\n" % name)
        self.assertRegex(out, r"warning %s rank_lost epoch=1 node=node1 rank=1 reason=" % name)
        self.assertEqual(self.ctl("events", "--last", "2")[0].splitlines(),
                         self.ctl("events")[0].splitlines()[-2:])
        self.coordinator.terminate()
        self.assertEqual(follower.wait(20), 1)

    # --- Abort ---------------------------------------------------------------

    def test_abort_ends_one_job_and_tells_its_ranks_why(self):
        a_job, a = self.start(4)
        b_job, b = self.start(2)
        out, _ = self.ctl("abort", a, "--reason", "the node is needed")
        self.assertEqual(out, "job %s is aborted; 4 ranks were notified\n" % a)
        self.assertNotEqual(a_job.wait(30), 0)
        why = "the job was aborted by %s@%s: the node is needed" % (pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname())
        for r in range(4):
            self.assertIn(why, a_job.record(r)["text"])
        self.await_steps(b_job)
        self.assertIn("there are: " + b, self.refused("abort", "nobody"))
        b_job.touch("end")
        b_job.check_ok()
        self.assertEqual([b_job.record(r)["text"] for r in range(2)], ["", ""])
        self.assertIn("reason=\"%s\"" % why, self.ctl("events", a)[0])

    # --- Drain ---------------------------------------------------------------

    def test_a_drained_node_keeps_its_job_and_gets_no_other(self):
        job, name = self.start(2)
        out, _ = self.ctl("drain", "node1")
        self.assertEqual(out, "node node1 is drained: it gets no new jobs; jobs there now: %s\n" % name)
        self.assertEqual(self.line_of(self.ctl("status")[0], ["node1"])[-1], "drained")
        other = harness.Job(np=2, nodes=2, program="loop.py",
                            launcher_args=["--coordinator", self.address, "--secret-file", self.secret_file])
        self.addCleanup(other.stop)
        self.assertNotEqual(other.wait(60), 0)
        self.assertIn("node 'node1' has been drained by an operator and takes no new jobs", other.stderr())
        self.await_steps(job)

        waiting = subprocess.Popen(self.command("drain", "node1", "--wait"), stdout=subprocess.PIPE, text=True,
                                   env=harness.environment())
        self.addCleanup(waiting.stdout.close)
        self.addCleanup(self.end, waiting)
        self.assertIn("drained", waiting.stdout.readline())
        self.assertEqual(waiting.stdout.readline(), "waiting for %s\n" % name)
        self.await_steps(job)
        self.assertIsNone(waiting.poll())
        job.touch("end")
        job.check_ok()
        self.assertEqual(waiting.wait(30), 0)
        self.assertEqual(waiting.stdout.read(), "node node1 has no jobs\n")
        self.assertEqual(self.ctl("drain", "node1", "--undo")[0], "node node1 takes new jobs again\n")
        job, name = self.start(2)
        job.touch("end")
        job.check_ok()

    def test_a_wait_ends_when_the_drain_is_undone(self):
        job, name = self.start(2)
        waiting = subprocess.Popen(self.command("drain", "node1", "--wait"), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True, env=harness.environment())
        self.addCleanup(waiting.stderr.close)
        self.addCleanup(self.end, waiting)
        harness.wait_until(lambda: "drained" in self.ctl("status")[0], 20, "the drain")
        self.ctl("drain", "node1", "--undo")
        self.assertEqual(waiting.wait(20), 1)
        self.assertIn("node node1 is no longer drained", waiting.stderr.read())

    # --- A job of its own ----------------------------------------------------

    def test_maypolerun_says_how_its_own_coordinator_is_asked(self):
        with harness.Job(np=2, nodes=2, program="loop.py", launcher_args=["--verbose"]) as job:
            job.await_file("rank.0.json")
            said = [line.partition("maypolectl ")[2] for line in job.stderr().splitlines()
                    if "ask about this job: maypolectl " in line]
            self.assertEqual(len(said), 1, job.stderr())
            self.assertIn("--coordinator=%s " % job.endpoints()["admin"], said[0])
            done = subprocess.run([CTL] + shlex.split(said[0]), capture_output=True, text=True, timeout=60,
                                  env=harness.environment())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("1 job, 2 nodes, 2 running ranks", done.stdout)
            job.touch("end")
            job.check_ok()

    # --- What goes wrong -----------------------------------------------------

    def test_errors_are_one_line(self):
        self.assertIn("there is no job \"x\"; there are no jobs now", self.refused("ranks", "x"))
        self.assertIn("give --secret_file", self.refused("--secret_file", self.secret("wrong", "sesame"), "status"))
        self.assertIn("the cluster secret is not this coordinator's",
                      self.refused("--secret_file", self.secret("wrong2", "sesame"), "events"))
        self.assertIn("chmod 600", self.refused("--secret_file", self.readable(), "status"))
        self.assertIn("No such file", self.refused("--secret_file", "/nowhere", "status"))
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            nobody = "127.0.0.1:%d" % held.getsockname()[1]
            line = self.refused("--coordinator", nobody, "status")
            self.assertIn("no answer from coordinator %s: Connection refused" % nobody, line)
            self.assertIn("no answer", self.refused("--coordinator", nobody, "events", "--follow"))
        self.assertIn("HOST:PORT", self.refused("--coordinator", "here", "status"))
        self.assertIn("is not a coordinator", self.refused("--coordinator", self.metrics, "status"))
        self.assertRegex(self.refused("--coordinator", "no-such-host.invalid:1", "--timeout", "3", "status"),
                         "no answer from coordinator|did not answer within 3 s")
        self.assertIn("there is no command 'stats'", self.refused("stats", status=2))
        self.assertIn("the node's name must be 1 to 63 printable ASCII characters", self.refused("drain", "a b"))

    def readable(self):
        path = self.secret("readable", SECRET)
        os.chmod(path, 0o644)
        return path

    def test_one_that_does_not_answer(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            line = self.refused("--timeout", "1", "--coordinator", "127.0.0.1:%d" % silent.getsockname()[1], "status")
        self.assertIn("did not answer within 1 s", line)

    def test_proxies_are_ignored(self):
        done = subprocess.run(self.command("status"), capture_output=True, text=True, timeout=60, env=harness.environment(
            {"http_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9"}))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_environment_says_where(self):
        done = subprocess.run([CTL, "jobs"], capture_output=True, text=True, timeout=60, env=harness.environment(
            {"MAYPOLE_COORDINATOR": self.address, "MAYPOLE_SECRET_FILE": self.secret_file}))
        self.assertEqual((done.returncode, done.stdout), (0, "no jobs\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
