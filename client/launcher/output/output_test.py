"""maypolerun's output, environment and files, with fake daemons."""
import ctypes
import os
import re
import resource
import subprocess
import time
import unittest

import concurrently
from client.launcher.testing.launch_fixture import LauncherTest, wait_for


LOST = "maypolerun: cannot write to standard %s: %s; lines of ranks are missing there, and the job goes on\n"


class OutputTest(LauncherTest):
    def test_lines_carry_rank_and_stream(self):
        rc, out, err = self.run_job("-np", "2", "sh", "-c", "echo o$MAYPOLE_RANK; echo e$MAYPOLE_RANK >&2")
        self.assertEqual(rc, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[0]<stdout>:o0", "[1]<stdout>:o1"])
        self.assertEqual(sorted(err.splitlines()), ["[0]<stderr>:e0", "[1]<stderr>:e1"])

    def test_long_output_of_many_ranks_keeps_its_lines(self):
        script = 'i=0; while [ $i -lt 500 ]; do echo "$MAYPOLE_RANK-$i-%s"; i=$((i+1)); done' % ("x" * 200)
        rc, out, err = self.run_job("-np", "4", "sh", "-c", script)
        self.assertEqual(rc, 0, err)
        lines = out.splitlines()
        self.assertEqual(len(lines), 2000)
        for rank in range(4):
            mine = [l for l in lines if l.startswith("[%d]<stdout>:" % rank)]
            self.assertEqual(mine, ["[%d]<stdout>:%d-%d-%s" % (rank, rank, i, "x" * 200) for i in range(500)])

    def test_one_rank_is_passed_through_without_daemons(self):
        rc, out, err = self.run_job("-np", "1", "sh", "-c", r"printf 'a\rb'; echo $MAYPOLE_SIZE$MAYPOLE_AGENT >&2",
                                    text=False)
        self.assertEqual((rc, out, err), (0, b"a\rb", b"1\n"))
        self.assertFalse(os.path.exists(os.path.join(self.dir, "coordinator.args")))

    def test_no_prefix(self):
        rc, out, _ = self.run_job("-np", "2", "--no-prefix", "sh", "-c", "echo $MAYPOLE_RANK")
        self.assertEqual((rc, sorted(out.split())), (0, ["0", "1"]))

    def test_timestamps(self):
        rc, out, _ = self.run_job("-np", "2", "--prefix-output-with-timestamp", "sh", "-c", "echo $MAYPOLE_RANK")
        self.assertEqual(rc, 0)
        for line in out.splitlines():
            when, rest = line.split("[", 1)
            self.assertLess(abs(time.mktime(time.strptime(when)) - time.time()), 60)
            self.assertRegex(rest, r"^[01]\]<stdout>:[01]$")

    def test_check_build_fails_if_what_the_environment_wants_is_not_there(self):
        self.assertEqual(self.run_job("--check-build")[0], 0)
        self.env.update(HOROVOD_WITH_MPI="1", HOROVOD_WITH_GLOO="1", HOROVOD_WITH_MXNET="0")
        rc, out, err = self.run_job("--check-build")
        self.assertEqual((rc, err), (1, "maypolerun: HOROVOD_WITH_MPI: it is not there, see above\n"))
        self.assertIn("[ ] MPI", out)

    def test_horovodrun(self):
        os.symlink(self.maypolerun, os.path.join(self.dir, "horovodrun"))
        shim = os.path.join(self.dir, "horovod_shim")
        os.makedirs(os.path.join(shim, "horovod"))
        self.write("horovod_shim/horovod/__init__.py", "")
        self.env["PYTHONPATH"] = self.dir
        self.maypolerun = os.path.join(self.dir, "horovodrun")
        rc, out, err = self.run_job("-np", "2", "--gloo", "sh", "-c", "echo $PYTHONPATH $HOROVOD_RANK")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(sorted(out.splitlines()),
                         ["[%d]<stdout>:%s:%s %d" % (rank, shim, self.dir, rank) for rank in (0, 1)])

    def test_the_config_file_of_horovodrun(self):
        config = self.write("run.yaml", "params:\n  fusion_threshold_mb: 2\nstall_check:\n  warning_time_seconds: 9\n"
                            "autotune:\n  enabled: true\n")
        show = ["sh", "-c", "echo $MAYPOLE_FUSION_THRESHOLD $MAYPOLE_STALL_CHECK_TIME_SECONDS"]
        rc, out, err = self.run_job("-np", "2", "--config-file", config, "--stall-check-warning-time-seconds=4", *show)
        self.assertEqual((rc, sorted(out.splitlines())), (0, ["[0]<stdout>:2097152 4", "[1]<stdout>:2097152 4"]), err)
        self.assertRegex(err, r"^maypolerun: --autotune has no effect: there is nothing to tune: [^\n]*\n$")
        rc, _, err = self.run_job("-np", "2", "--config-file", self.write("bad.yaml", "params:\n  cycle: 1\n"), *show)
        self.assertEqual(rc, 2)
        self.assertRegex(err, r"^maypolerun: \S*/bad.yaml:2: there is no key 'params.cycle'; expected ")

    def test_files_that_are_none(self):
        for option in ("--hostfile", "--config-file"):
            self.assertEqual(self.run_job("-np", "2", option, "/usr", "true"),
                             (2, "", "maypolerun: cannot read /usr: Is a directory\n"))
        rc, _, err = self.run_job("-np", "2", "--flagfile=/usr", "true")
        self.assertEqual((rc, err), (2, "maypolerun: --flagfile: /usr: Is a directory\n"))

    def test_a_hostfile_with_a_byte_order_mark(self):
        hosts = os.path.join(self.dir, "hosts")
        with open(hosts, "wb") as f:
            f.write(b"\xef\xbb\xbflocalhost slots = 2 max_slots=4\r\n")
        rc, out, err = self.run_job("--hostfile", hosts, "--no-prefix", "sh", "-c", "echo $MAYPOLE_LOCAL_SIZE")
        self.assertEqual((rc, out, err), (0, "2\n2\n", ""))

    def test_output_files(self):
        d = os.path.join(self.dir, "logs/run")
        script = "echo o$MAYPOLE_RANK; echo e$MAYPOLE_RANK >&2"
        rc, out, _ = self.run_job("-np", "11", "--nodes", "2", "--output-filename", d, "sh", "-c", script)
        self.assertEqual(rc, 0)
        self.assertEqual(self.read("logs/run/rank.03/stdout"), "o3\n")
        self.assertEqual(self.read("logs/run/rank.10/stderr"), "e10\n")
        self.assertIn("[10]<stdout>:o10\n", out)

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_a_full_disk_is_told_once_and_the_job_goes_on(self):
        d = os.path.join(self.dir, "logs")
        for rank in (0, 1):
            os.makedirs(os.path.join(d, "rank.%d" % rank))
            os.symlink("/dev/full", os.path.join(d, "rank.%d" % rank, "stdout"))
        rc, out, err = self.run_job("-np", "2", "--output-filename", d, "sh", "-c",
                                    "echo a; sleep 0.1; echo b; echo e >&2")
        self.assertEqual(rc, 0)
        self.assertEqual(sorted(out.splitlines()), ["[%d]<stdout>:%s" % (r, x) for r in (0, 1) for x in "ab"])
        said = [line for line in err.splitlines() if line.startswith("maypolerun: ")]
        self.assertRegex(said[0], r"cannot write %s/rank\.[01]/stdout: No space left on device; nothing more goes there, "
                         r"and the job goes on$" % re.escape(d))
        self.assertEqual(said[1:], ["maypolerun: 2 files in %s end early: they could not be written" % d])
        self.assertEqual(self.read("logs/rank.1/stderr"), "e\n")

    def test_an_output_file_that_cannot_be_opened_is_told(self):
        d = os.path.join(self.dir, "logs")
        os.makedirs(os.path.join(d, "rank.1", "stdout"))
        rc, out, err = self.run_job("-np", "2", "--output-filename", d, "echo", "never")
        self.assertEqual((rc, out, err), (1, "", "maypolerun: cannot write %s/rank.1/stdout: Is a directory\n" % d))

    def test_a_prompt_is_shown_and_rank_0_reads_stdin(self):
        script = 'if [ $MAYPOLE_RANK = 0 ]; then printf "name? "; fi; read x; echo "got $x"'
        job = self.start("-np", "2", "sh", "-c", script, stdin=subprocess.PIPE)
        shown = ""
        while "name? " not in shown:
            shown += job.stdout.read(1)
        job.stdin.write("ada\n")
        job.stdin.close()
        shown += job.stdout.read()
        self.assertEqual(job.wait(timeout=60), 0)
        self.assertIn("got ada\n", shown)
        self.assertIn("[1]<stdout>:got \n", shown)  # read nothing

    def test_environment_and_placement(self):
        names = "$MAYPOLE_RANK/$MAYPOLE_SIZE $MAYPOLE_LOCAL_RANK/$MAYPOLE_LOCAL_SIZE "
        names += "$MAYPOLE_CROSS_RANK/$MAYPOLE_CROSS_SIZE $MAYPOLE_NODE $MAYPOLE_START_TIMEOUT $PYTHONUNBUFFERED"
        rc, out, err = self.run_job(
            "-np", "3", "--nodes", "2", "--no-prefix", "--start-timeout", "33", "sh", "-c",
            'echo "%s $(basename $MAYPOLE_AGENT)"; echo "$MAYPOLE_JOB $MAYPOLE_TOKEN" >&2' % names)
        self.assertEqual(rc, 0)
        self.assertEqual(sorted(out.splitlines()), [
            "0/3 0/2 0/2 node0 33 1 node0.sock",
            "1/3 1/2 0/2 node0 33 1 node0.sock",
            "2/3 0/1 1/2 node1 33 1 node1.sock",
        ])
        self.assertRegex(err, r"^([0-9a-f]{16} [0-9a-f]{64})\n\1\n\1\n$")

    def test_a_job_has_a_name_for_operators(self):
        rc, out, err = self.run_job(
            "-np", "2", "--no-prefix", "--job-name", "res-net", "sh", "-c", 'echo "$MAYPOLE_JOB"')
        self.assertEqual(rc, 0, err)
        self.assertRegex(out, r"^(res-net-[0-9a-f]{8})\n\1\n$")

    def test_daemons_get_their_flags_and_a_private_secret(self):
        rc, _, err = self.run_job("-np", "2", "--nodes", "2", "--network-addresses", "127.0.0.2,127.0.0.3", "true")
        self.assertEqual(rc, 0, err)
        self.assertEqual(self.read("modes").split(), ["600", "700"])
        coordinator = self.read("coordinator.args").split()
        self.assertIn("--listen=127.0.0.1:0", coordinator)
        self.assertIn("--start_timeout=120s", coordinator)
        secret = next(a for a in coordinator if a.startswith("--secret_file="))
        worker = self.read("node1.args").split()
        for flag in ("--node=node1", "--coordinator=127.0.0.1:1001", "--network=127.0.0.3", secret):
            self.assertIn(flag, worker)

    def test_another_coordinator_is_used_not_started(self):
        rc, _, err = self.run_job("-np", "1", "--coordinator", "10.9.8.7:65", "--secret-file", "/s", "true")
        self.assertEqual(rc, 0, err)
        self.assertFalse(os.path.exists(os.path.join(self.dir, "coordinator.args")))
        self.assertIn("--coordinator=10.9.8.7:65", self.read("node0.args"))
        self.assertIn("--secret_file=/s", self.read("node0.args"))

    def test_endpoints_file_and_verbose(self):
        path = os.path.join(self.dir, "endpoints")
        rc, out, err = self.run_job(
            "-np", "2", "--nodes", "2", "--verbose", "--endpoints-file", path, "cat", path)
        self.assertEqual(rc, 0, err)
        expected = "admin=127.0.0.1:1001\ncoordinator=127.0.0.1:1002\nnode0=127.0.0.1:02003\nnode1=127.0.0.1:12003\n"
        self.assertEqual(self.read("endpoints"), expected)
        self.assertIn("[0]<stdout>:coordinator=127.0.0.1:1002\n", out)  # before the ranks
        self.assertRegex(err, r"maypolerun: coordinator pid=\d+ listen=127.0.0.1:1001 metrics=127.0.0.1:1002")
        self.assertRegex(err, r"maypolectl --coordinator=127.0.0.1:1001 --secret_file=\S+/secret status")
        self.assertRegex(err, r"maypolerun: node1 pid=\d+ socket=\S+/node1.sock")

    def test_an_endpoints_file_that_cannot_be_written_leaves_nothing(self):
        path = os.path.join(self.dir, "endpoints")
        os.makedirs(os.path.join(path, "in-the-way"))
        rc, out, err = self.run_job("-np", "2", "--endpoints-file", path, "echo", "never")
        self.assertEqual((rc, out), (1, ""))
        self.assertRegex(err, r"^maypolerun: cannot write %s \(--endpoints-file\): Is a directory\n$" % re.escape(path))
        self.assertEqual([n for n in os.listdir(self.dir) if n.startswith("endpoints")], ["endpoints"])

    def test_a_reader_that_is_gone_does_not_end_the_job(self):
        job = self.start("-np", "2", "sh", "-c", 'echo x; : >"$FAKE_DIR/up.$MAYPOLE_RANK"; read y; echo z; '
                         ': >"$FAKE_DIR/done.$MAYPOLE_RANK"', stdin=subprocess.PIPE)
        self.wait_for_file("up.0")
        job.stdout.close()
        job.stdin.write("go\n")
        job.stdin.close()
        self.assertEqual(job.wait(timeout=60), 1)
        self.wait_for_file("done.0")
        self.wait_for_file("done.1")
        self.assertEqual(job.stderr.read(), LOST % ("output", "Broken pipe"))

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_the_loss_of_output_is_told(self):
        prints = ("-np", "2", "sh", "-c", "echo out; echo err >&2")
        with open("/dev/full", "w") as full:
            rc, _, err = self.run_job(*prints, stdout=full)
            said, rest = [[line for line in err.splitlines(True) if line.startswith("maypolerun: ") == own]
                          for own in (True, False)]
            self.assertEqual((rc, said), (1, [LOST % ("output", "No space left on device")]))
            self.assertEqual(sorted(rest), ["[0]<stderr>:err\n", "[1]<stderr>:err\n"])
            rc, out, _ = self.run_job(*prints, stderr=full)
            self.assertEqual((rc, sorted(out.splitlines(True))), (1, sorted(
                ["[0]<stdout>:out\n", "[1]<stdout>:out\n", LOST % ("error", "No space left on device")])))
            self.assertEqual(self.run_job(*prints, stdout=full, stderr=full)[0], 1)
            # A rank's own failure is the better reason, and what is not written is not lost.
            self.assertEqual(self.run_job("-np", "2", "sh", "-c", "echo x; exit 3", stdout=full)[0], 3)
            self.assertEqual(self.run_job("-np", "2", "true", stdout=full)[::2], (0, ""))

    def test_the_loss_of_output_without_a_descriptor_is_told(self):
        rc, _, err = self.run_job("-np", "2", "echo", "x", preexec_fn=lambda: os.close(1))
        self.assertEqual((rc, err), (1, LOST % ("output", "Bad file descriptor")))
        self.assertEqual(self.run_job("-np", "2", "true", preexec_fn=lambda: os.close(1))[::2], (0, ""))

    def test_usage(self):
        self.assertEqual(self.run_job("true")[0], 2)
        rc, out, _ = self.run_job("--help")
        self.assertEqual(rc, 0)
        self.assertIn("Examples:", out)
        rc, out, _ = self.run_job("--version")
        self.assertTrue(re.match(r"maypolerun \d+\.\d+\.\d+\n$", out), out)

    def test_too_few_open_files(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))

        rc, out, err = self.run_job("-np", "16", "echo", "never", preexec_fn=limit)
        self.assertEqual((rc, out), (1, ""))
        self.assertEqual(err.count("\n"), 1, err)
        self.assertRegex(err, r"^maypolerun: the limit of open files \(ulimit -Hn\) is 60, but this job needs 128: "
                         r"raise it .*or start fewer ranks$")
        # A job of one rank needs no extra files, and the soft limit does not count.
        self.assertEqual(self.run_job("-np", "1", "true", preexec_fn=limit)[0], 0)
        soft = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (60, 500))
        self.assertEqual(self.run_job("-np", "16", "true", preexec_fn=soft)[0], 0)

    def test_a_command_that_cannot_run(self):
        rc, _, err = self.run_job("-np", "2", "no-such-command-here")
        self.assertEqual((rc, err), (127, "maypolerun: cannot run no-such-command-here: not found on PATH\n"))
        path = self.write("plain", "x", mode=0o644)
        rc, _, err = self.run_job("-np", "2", path)
        self.assertEqual((rc, err), (126, "maypolerun: cannot run %s: Permission denied\n" % path))

    def test_a_directory_on_path_that_may_not_be_searched(self):
        hidden = os.path.join(self.dir, "hidden")
        os.mkdir(hidden, 0)
        self.env["PATH"] = hidden + os.pathsep + self.env["PATH"]

        def as_others():
            for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH; PR_CAPBSET_DROP fails where they are missing
                ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)

        rc, _, err = self.run_job("-np", "2", "no-such-command-here", preexec_fn=as_others)
        self.assertEqual((rc, err), (127, "maypolerun: cannot run no-such-command-here: not found on PATH\n"))

    def test_a_script_without_interpreter_line(self):
        path = self.write("script", "echo ran\n")
        rc, out, _ = self.run_job("-np", "2", path)
        self.assertEqual((rc, sorted(out.splitlines())), (0, ["[0]<stdout>:ran", "[1]<stdout>:ran"]))

    def test_a_stalled_reader_holds_ranks_back_and_loses_nothing(self):
        job = self.start("-np", "2", "sh", "-c", "head -c 8000000 /dev/zero | tr '\\0' y; echo")
        # Do not read before the ranks' commands block in a write.
        wait_for(lambda: len(self.writers_that_wait()) == 2, "two ranks that wait to write")
        out = job.stdout.read()
        self.assertEqual(job.wait(timeout=60), 0)
        self.assertEqual(out.count("y"), 16000000)

    @staticmethod
    def writers_that_wait():
        """Processes named 'tr' that sleep in a write."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/comm" % pid) as f, open("/proc/%s/wchan" % pid) as g:
                    where = g.read()  # the kernel's function: pipe_write, anon_pipe_write, ...
                    if f.read() == "tr\n" and "pipe" in where and "read" not in where:
                        found.append(pid)
            except OSError:
                pass
        return found


if __name__ == "__main__":
    concurrently.main()
