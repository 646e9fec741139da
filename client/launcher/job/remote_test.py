"""Ranks on other hosts, with fake daemons and a fake ssh.

The fake ssh runs its command on this machine; tests/start/ssh_test.py has the
real one. No machine has the hosts' addresses. tearDown() of LauncherTest checks
that nothing is left behind.
"""
import os
import signal
import subprocess
import time

import concurrently
from client.launcher.testing.launch_fixture import FAKE_SSH, RANK_IS_UP, LauncherTest, wait_for

HOSTS = ["-H", "192.0.2.7:1,192.0.2.8:1", "--coordinator", "192.0.2.1:4001"]
WAIT_FOR_GO = RANK_IS_UP + 'while [ ! -e "$FAKE_DIR/go" ]; do sleep 0.01; done; '


class RemoteTest(LauncherTest):
    def setUp(self):
        super().setUp()
        self.write("ssh", FAKE_SSH)
        self.env["PATH"] = self.dir + os.pathsep + self.env["PATH"]
        # This variable is not sent; the fake ssh inherits it from us.
        self.env["SSH_CONNECTION"] = "192.0.2.1 1 192.0.2.7 22"

    def test_a_job(self):
        rc, out, err = self.run_job(*HOSTS, "sh", "-c", "echo $MAYPOLE_RANK of $MAYPOLE_SIZE on $MAYPOLE_CROSS_RANK")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(sorted(out.splitlines()), ["[0]<stdout>:0 of 2 on 0", "[1]<stdout>:1 of 2 on 1"])

    def test_output_files_that_cannot_be_made_are_told(self):
        directory = os.path.join(self.dir, "out")
        os.mkdir(directory)
        self.write("out/rank.0", "a file where a directory shall be")
        rc, out, err = self.run_job(*HOSTS, "--output-filename", directory, "sleep", self.marker)
        self.assertEqual((rc, out), (1, ""), err)
        self.assertRegex(err, r"^maypolerun: cannot make %s/rank.0 \(--output-filename\): [^\n]*\n$" % directory)

    def test_no_secret_stands_on_a_command_line(self):
        secret = self.write("secret", "sesame\n", 0o600)
        rc, _, err = self.run_job(*HOSTS, "--secret-file", secret, "sh", "-c", "echo $MAYPOLE_TOKEN >&2")
        self.assertEqual(rc, 0, err)
        token = err.splitlines()[0].split(":")[1]
        self.assertEqual(len(token), 64)
        for name in ("ssh.args", "node0.args"):
            self.assertNotIn("sesame", self.read(name))
            self.assertNotIn(token, self.read(name))

    def test_a_host_that_stands_still_does_not_hold_ctrl_c(self):
        job = self.start(*HOSTS, "sh", "-c", WAIT_FOR_GO)
        self.wait_for_ranks(2)
        stopped = self.nodes()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            start = time.monotonic()
            os.kill(job.pid, signal.SIGINT)
            self.assertEqual(job.wait(timeout=60), 130)
            self.assertLess(time.monotonic() - start, 2.5)
        finally:
            for pid in stopped:
                try:
                    os.kill(pid, signal.SIGCONT)
                except OSError:
                    pass
        wait_for(lambda: not self.nodes(), "the nodes' end")
        self.remove_directories()

    def test_ctrl_c_while_nobody_reads(self):
        job = self.start(*HOSTS, "sh", "-c", RANK_IS_UP + "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done")
        self.wait_for_ranks(2)
        time.sleep(0.5)  # until all buffers on the way are full
        start = time.monotonic()
        os.kill(job.pid, signal.SIGINT)
        self.assertEqual(job.wait(timeout=60), 130)
        self.assertLess(time.monotonic() - start, 2.0)

    def test_a_host_behind_a_pager_is_waited_for(self):
        job = self.start("-H", "localhost:1,192.0.2.8:1", "--coordinator", "192.0.2.1:4001", "sh", "-c",
                         RANK_IS_UP + 'if [ "$MAYPOLE_RANK" = 0 ]; then ' + WAIT_FOR_GO + "exit 3; fi; "
                         "trap 'echo the last word; exit 4' TERM; "
                         "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done")
        self.wait_for_ranks(2)
        time.sleep(0.5)  # until all buffers on the way are full
        self.write("go", "")
        while "SIGTERM" not in job.stderr.readline():
            pass
        time.sleep(8)  # SIGKILL after 2 s, and 5 s for an answer
        out, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 3, err)
        self.assertNotIn("does not answer", err)
        self.assertIn("yyyyyy", out.splitlines()[-1])
        self.assertGreater(len(out), 1 << 20)

    def test_a_lost_host_is_told_once_and_ends_the_job(self):
        job = self.start("--verbose", *HOSTS, "sh", "-c", WAIT_FOR_GO)
        self.wait_for_ranks(2)
        started = 0
        while started < 2:  # a rank may run before its node has reported it
            started += job.stderr.readline().endswith(" started\n")
        # No process may see the end of another one and report it, so all are
        # stopped first. Guards, the parents of their supervisors, are killed last
        # (the kernel continues orphans).
        nodes = self.nodes()
        for pid in nodes:
            os.kill(pid, signal.SIGSTOP)
        for pid in sorted(nodes, key=lambda p: self.parent(p) not in nodes):
            os.kill(pid, signal.SIGKILL)
        _, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 255)
        self.assertIn("maypolerun: 192.0.2.7: the connection broke: ssh was killed by signal 9", err)
        self.assertRegex(err.splitlines()[-1], r"rank [01] \(pid \d+, host 192.0.2.[78]\) was lost with its host$")
        self.remove_directories()

    def test_a_killed_agent_is_named(self):
        job = self.start(*HOSTS, "sh", "-c", WAIT_FOR_GO + "exit 7")
        self.wait_for_ranks(2)
        agent = next(p for p in self.processes() if self.command_line(p)[0] == b"sleep")
        os.kill(agent, signal.SIGKILL)
        said = ""
        while "was killed by signal 9" not in said:
            said += job.stderr.readline()
        self.write("go", "")
        err = job.stderr.read()
        self.assertEqual(job.wait(timeout=60), 7, err)
        self.assertRegex(said, r"maypolerun: 192\.0\.2\.[78]: node[01] \(pid %d\) was killed by signal 9" % agent)

    @staticmethod
    def command_line(pid):
        with open("/proc/%d/cmdline" % pid, "rb") as f:
            return f.read().split(b"\0")

    def test_garbage_from_a_host_is_one_line(self):
        version = self.run_job("--version")[1].split()[1]
        self.write("ssh", "#!/bin/sh\nprintf '\\nmaypole-node protocol=2 version=%s\\n\\377\\377\\377\\377\\017'\n"
                   "exec cat >/dev/null\n" % version)
        rc, out, err = self.run_job(*HOSTS, "echo", "never")
        self.assertEqual((rc, out), (1, ""), err)
        lines = err.splitlines()
        self.assertEqual(lines.pop(), "maypolerun: the job was not started")
        for line in lines:  # one for each host that has answered
            self.assertRegex(line, r"^maypolerun: 192\.0\.2\.[78]: invalid data came through ssh \(a frame of "
                             r"4294967295 bytes; 1 to 1048576 are expected\)$")

    def test_garbage_to_a_node_is_refused_with_one_line(self):
        node = self.start("--node-of-job", stdin=subprocess.PIPE, text=False)
        out, err = node.communicate(b"\xff" * 20, timeout=60)
        self.assertEqual((node.returncode, err), (1, b""))
        self.assertIn(b"invalid data came through ssh (an unterminated length)", out)

    def test_the_node_alone_is_of_no_use(self):
        rc, _, err = self.run_job("--node-of-job")
        self.assertEqual(rc, 2)
        self.assertIn("is for maypolerun itself", err)


if __name__ == "__main__":
    concurrently.main()
