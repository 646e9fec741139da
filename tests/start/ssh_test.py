"""maypolerun over a real ssh: jobs on two machines, and how they end."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

import harness
import machines
import ssh_fixture

REASON = ssh_fixture.available()

SUM = """
import os, torch
import maypole.torch as hvd
hvd.init()
x = hvd.allreduce(torch.arange(1000, dtype=torch.float64) * (hvd.rank() + 1), op=hvd.Sum, name="x")
n = hvd.size() * (hvd.size() + 1) // 2
assert torch.equal(x, torch.arange(1000, dtype=torch.float64) * n), x
print("on %s local %d of %d cross %d of %d sum %d" % (
    os.uname().nodename, hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), x[-1]))
"""

# A step whose inputs are larger than all that else crosses the wires.
LARGE_BYTES = 16 << 20
LARGE = """
import torch
import maypole.torch as hvd
hvd.init()
x = hvd.allreduce(torch.ones(%d, dtype=torch.float32), op=hvd.Sum, name="x")
assert torch.equal(x, torch.full_like(x, 2)), x
""" % (LARGE_BYTES // 4)

# No framework is needed to meet the other ranks.
MEET = """
import os
from maypole import _native
from maypole.common import basics, operations
basics.init()
operations.submit(_native.BARRIER, _native.UINT8, 0, 0, (), 1.0, 1.0, None, 0, 0).wait()
print("met", basics.size(), "on", os.uname().nodename)
"""

UP = ': >"$MAYPOLE_TEST_DIR/up.$MAYPOLE_RANK"; '
# Deaf to signals, with a child in its group and one that has left it.
STUBBORN = "trap '' INT TERM HUP; sleep 300 & setsid sleep 300 & " + UP + "while :; do sleep 300; done"


@unittest.skipIf(REASON, REASON)
class SshTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.net = ssh_fixture.SshMachines()
        cls.net.__enter__()
        cls.addClassCleanup(cls.net.__exit__)

    def tearDown(self):
        for machine in (0, 1):
            self.net.await_quiet(5, machine)

    def run_job(self, argv, **kwargs):
        job = self.net.start(argv, **kwargs)
        status = job.wait()
        return status, job.stdout(), job.stderr()

    def start_stubborn(self):
        job = self.net.start(["-H", "a:1,b:2", "sh", "-c", STUBBORN])
        for rank in range(3):
            job.await_file("up.%d" % rank)
        return job

    def test_values_over_two_hosts(self):
        status, out, err = self.run_job(["-np", "4", "-H", "a:2,b:2", harness.PYTHON, "-c", SUM])
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(out.splitlines()), [
            "[%d]<stdout>:on %s local %d of 2 cross %d of 2 sum 9990" % (r, "ab"[r // 2], r % 2, r // 2)
            for r in range(4)])
        self.assertEqual(err, "")

    def test_all_ranks_on_the_other_host(self):
        status, out, err = self.run_job(["-H", "root@b:2", harness.PYTHON, "-c", MEET])
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[%d]<stdout>:met 2 on b" % r for r in range(2)])

    def test_hosts_are_filled_in_their_order(self):
        status, out, err = self.run_job(["-np", "3", "-H", "b:2,a:2", harness.PYTHON, "-c", MEET])
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[%d]<stdout>:met 3 on %s" % (r, "bba"[r]) for r in range(3)])

    def test_a_hostfile_and_a_key_by_name(self):
        key = self.net.make_key("second_key")
        with open(self.net.path("authorized_keys")) as f:
            before = f.read()
        with open(key + ".pub") as f:
            self.net.write("authorized_keys", f.read())
        self.addCleanup(self.net.write, "authorized_keys", before)
        hosts = self.net.write("hosts", "# ours\na slots=1\nb:1\n")
        status, out, err = self.run_job(["--hostfile", hosts, "-i", key, harness.PYTHON, "-c", MEET])
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[0]<stdout>:met 2 on a", "[1]<stdout>:met 2 on b"])

    def test_what_travels(self):
        directory = self.net.path("my  job")
        os.mkdir(directory)
        status, out, err = self.run_job(
            ["-H", "a:1,b:1", "sh", "-c",
             'echo "$FROM_THE_HEAD|$(pwd)|$PWD|$HOME|$MAYPOLE_RANK|$XDG_RUNTIME_DIR|$MAYPOLE_AGENT"'],
            cwd=directory, env={"HOME": "/of/a", "MAYPOLE_AGENT": "/of/another/job", "XDG_RUNTIME_DIR": self.net.dir})
        self.assertEqual(status, 0, err)
        by_rank = sorted(out.splitlines())
        a, b = (line.split("|") for line in by_rank)
        self.assertEqual(a[:5], ["[0]<stdout>:two words", directory, a[2], "/of/a", "0"])
        self.assertEqual(b[:5], ["[1]<stdout>:two words", directory, directory, "/root", "1"])
        self.assertEqual(b[5], "")
        self.assertNotIn("/of/another/job", (a[6], b[6]))

    def test_a_rank_of_its_own_is_passed_through_byte_by_byte(self):
        write = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 5000 + b'\\r\\nno end'); sys.stderr.write('e')"
        job = self.net.start(["-H", "b:1", harness.PYTHON, "-c", write])
        self.assertEqual(job.wait(), 0, job.stderr())
        self.assertEqual(job.read("stdout", "rb"), bytes(range(256)) * 5000 + b"\r\nno end")
        self.assertEqual(job.read("stderr", "rb"), b"e")

    def test_output_files_hold_the_bytes(self):
        write = "import os; os.write(1, bytes(range(256)) * 300 + b'no end')"
        job = self.net.start(["-H", "a:1,b:1", "--output-filename", "logs", harness.PYTHON, "-c", write])
        self.assertEqual(job.wait(), 0, job.stderr())
        for rank in range(2):
            self.assertEqual(job.read("logs/rank.%d/stdout" % rank, "rb"), bytes(range(256)) * 300 + b"no end")

    def test_much_output_comes_whole(self):
        status, out, err = self.run_job(["-H", "a:1,b:1", "sh", "-c", "seq -f $MAYPOLE_RANK.%.0f 1 60000"])
        self.assertEqual(status, 0, err)
        for rank in range(2):
            start = "[%d]<stdout>:%d." % (rank, rank)
            lines = [int(l[len(start):]) for l in out.splitlines() if l.startswith(start)]
            self.assertEqual(lines, list(range(1, 60001)))

    def test_a_shell_that_prints_is_no_trouble(self):
        with open(self.net.path("user_key.pub")) as f:
            key = f.read()
        self.net.write("authorized_keys", 'command="echo Welcome to b; printf more; eval $SSH_ORIGINAL_COMMAND" ' + key)
        self.addCleanup(self.net.write, "authorized_keys", key)
        status, out, err = self.run_job(["-H", "a:1,b:1", "echo", "x"])
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(sorted(out.splitlines()), ["[0]<stdout>:x", "[1]<stdout>:x"])

    def test_a_failing_rank_there(self):
        status, _, err = self.run_job(["-H", "a:1,b:1", "sh", "-c",
                                       "[ $MAYPOLE_RANK = 0 ] && sleep 60; echo bad batch >&2; exit 7"])
        self.assertEqual(status, 7, err)
        self.assertIn("[1]<stderr>:bad batch\n", err)
        self.assertRegex(err.splitlines()[-1], r"^maypolerun: rank 1 \(pid \d+, host b\) exited with code 7$")

    def test_a_rank_that_is_killed_there(self):
        job = self.net.start(["-H", "a:1,b:1", "sh", "-c", UP + "exec sleep 60"])
        for rank in range(2):
            job.await_file("up.%d" % rank)
        victim = next(p for p, argv in self.net.strangers(1).items() if argv.startswith("sleep 60"))
        os.kill(victim, signal.SIGKILL)
        self.assertEqual(job.wait(20), 137)
        self.assertRegex(job.stderr().splitlines()[-1],
                         r"rank 1 \(pid \d+, host b\) was killed by signal 9 \(Killed\)$")

    def test_ctrl_c(self):
        job = self.start_stubborn()
        start = time.monotonic()
        os.kill(job.maypolerun(), signal.SIGINT)
        self.assertEqual(job.wait(10), 130)
        self.assertLess(time.monotonic() - start, 2.0)
        self.net.await_quiet(max(0.1, 2.0 - (time.monotonic() - start)))

    def test_ctrl_c_reaches_the_ranks_there(self):
        job = self.net.start(["-H", "a:1,b:1", "sh", "-c", "trap 'echo cleaned; exit 0' INT; " + UP +
                              "while :; do sleep 0.05; done"])
        for rank in range(2):
            job.await_file("up.%d" % rank)
        os.kill(job.maypolerun(), signal.SIGINT)
        self.assertEqual(job.wait(10), 130)
        self.assertEqual(sorted(job.stdout().splitlines()), ["[0]<stdout>:cleaned", "[1]<stdout>:cleaned"])

    def test_ctrl_c_while_ssh_waits(self):
        # Nothing answers there: the machine accepts connections but sends nothing.
        silent = self.net[1].start([harness.PYTHON, "-c", "import socket, time\ns = socket.create_server(('', 2299))\n"
                                    "print(1, flush=True)\ntime.sleep(60)"], stdout=subprocess.PIPE)
        self.addCleanup(silent.stdout.close)
        silent.stdout.readline()
        try:
            job = self.net.start(["-H", "a:1,b:1", "-p", "2299", "true"], ssh=False)
            harness.wait_until(lambda: any("ssh" in c for c in self.net.strangers(0).values()), 10, "ssh")
            start = time.monotonic()
            os.kill(job.maypolerun(), signal.SIGINT)
            self.assertEqual(job.wait(10), 130)
            self.assertLess(time.monotonic() - start, 2.0)
        finally:
            silent.kill()
            silent.wait()
            for pid in self.net.strangers(1):
                harness.kill(pid)

    def test_kill_9_of_the_head_leaves_nothing(self):
        job = self.start_stubborn()
        os.kill(job.maypolerun(), signal.SIGKILL)
        job.wait(10)
        self.net.await_quiet(5)

    def test_kill_9_of_all_of_the_head_leaves_nothing_there(self):
        job = self.start_stubborn()
        for pid in self.net.strangers(0):
            harness.kill(pid)
        job.wait(10)
        self.net.await_quiet(5)

    def test_kill_9_of_maypolerun_there(self):
        for victim, said in [("guard", r"b: maypolerun there got signal 15 \(Terminated\)"),
                             ("supervisor", r"b: the connection broke: ssh exited with code 137: "
                              r"maypolerun: the supervisor \(pid \d+\) was killed by signal 9")]:
            with self.subTest(victim=victim):
                job = self.start_stubborn()
                table = harness.processes()
                ours = [p for p, argv in self.net.strangers(1).items() if "--node-of-job" in argv]
                guard = next(p for p in ours if table[p][0] not in ours)
                supervisor = next(p for p in ours if p != guard)
                os.kill(guard if victim == "guard" else supervisor, signal.SIGKILL)
                self.assertEqual(job.wait(20), 255)
                self.assertRegex(job.stderr(), "maypolerun: " + said)
                self.net.await_quiet(5)

    def test_a_connection_that_breaks(self):
        job = self.start_stubborn()
        ssh = next(p for p, argv in self.net.strangers(0).items() if argv.startswith("/usr/bin/ssh "))
        os.kill(ssh, signal.SIGTERM)
        self.assertEqual(job.wait(20), 255)
        self.assertRegex(job.stderr(), r"maypolerun: b: the connection broke: ssh ")
        self.assertRegex(job.stderr().splitlines()[-1], r"rank [12] \(pid \d+, host b\) was lost with its host$")

    def secret(self):
        return self.net.write("secret", "only those who know this may join\n")

    def start_daemon(self, machine, name, *args):
        """The daemon's process and what it announces."""
        program = next(p for p in harness.PROGRAMS if p.endswith(name))
        daemon = self.net[machine].start(
            ["sh", "-c", 'exec "$@" --announce_fd=1', "sh", os.path.join(harness.ROOT, program), *args],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(daemon.stdout.close)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.terminate)
        return daemon.stdout.readline()

    def start_coordinator(self):
        line = self.start_daemon(0, "maypole-coordinator", "--listen=10.213.78.1:0", "--secret_file=" + self.secret(),
                                 "--metrics=")
        return re.search(r"listen=(\S+)", line).group(1)

    def end_daemons(self):
        for machine in (0, 1):
            for pid in self.net.strangers(machine):
                harness.kill(pid, signal.SIGTERM)

    def test_a_coordinator_that_runs_already(self):
        self.addCleanup(self.end_daemons)
        try:
            address = self.start_coordinator()
            status, out, err = self.run_job(
                ["-H", "a:1,b:1", "--coordinator", address, "--secret-file", self.secret(),
                 harness.PYTHON, "-c", MEET])
        finally:
            self.end_daemons()
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(out.splitlines()), ["[0]<stdout>:met 2 on a", "[1]<stdout>:met 2 on b"])

    def test_agents_that_run_already(self):
        try:
            address = self.start_coordinator()
            for machine in (0, 1):  # each has a /tmp of its own
                self.start_daemon(machine, "maypole-worker", "--socket=/tmp/agent.sock", "--coordinator=" + address,
                                  "--secret_file=" + self.secret(), "--metrics=")
            status, out, err = self.run_job(["-H", "a:1,b:1", "--agent=/tmp/agent.sock", harness.PYTHON, "-c", MEET])
            self.assertEqual(status, 0, err)
            self.assertEqual(sorted(out.splitlines()), ["[0]<stdout>:met 2 on a", "[1]<stdout>:met 2 on b"])
            status, _, err = self.run_job(["-H", "b:2", "--agent=/tmp/none.sock", "true"])
        finally:
            self.end_daemons()
        self.assertEqual(status, 1)
        self.assertRegex(
            err, r"maypolerun: b: no maypole-worker can be reached \(.*/tmp/none.sock.*start it on this host")


@unittest.skipIf(REASON, REASON)
class AddressTest(unittest.TestCase):
    def meet(self, net, hosts, *options):
        job = net.start(["-H", hosts, *options, harness.PYTHON, "-c", MEET])
        self.assertEqual(job.wait(), 0, job.stderr())
        self.assertEqual(sorted(job.stdout().splitlines()), ["[0]<stdout>:met 2 on a", "[1]<stdout>:met 2 on b"])

    def test_ipv6_alone(self):
        with ssh_fixture.SshMachines(addresses=[[a] for a in machines.V6]) as net:
            self.meet(net, "a:1,b:1")
            self.meet(net, "a:1,[%s]:1" % machines.V6[1].split("/")[0], "--network-interfaces", "eth0")

    def test_several_interfaces(self):
        """Data travels over all of those in the list that a machine has."""
        with ssh_fixture.SshMachines() as net:
            subprocess.run(["ip", "link", "add", "eth1", "netns", str(net[0].pid), "type", "veth", "peer", "name", "eth1",
                            "netns", str(net[1].pid)], check=True, env=harness.environment())
            for n, machine in enumerate((net[0], net[1])):
                for command in (["addr", "add", "10.213.79.%d/24" % (n + 1), "dev", "eth1"], ["link", "set", "eth1", "up"]):
                    self.assertEqual(machine.run(["ip", *command]).returncode, 0, command)

            def sent():
                return [json.loads(net[0].run(["ip", "-json", "-stats", "link", "show", name]).stdout)[0]["stats64"]["tx"]
                        ["bytes"] for name in ("eth0", "eth1")]

            before = sent()
            job = net.start(["-H", "a:1,b:1", "--network-interfaces", "eth0,none,eth1", harness.PYTHON, "-c", LARGE])
            self.assertEqual(job.wait(), 0, job.stderr())
            for name, was, now in zip(("eth0", "eth1"), before, sent()):
                self.assertGreater(now - was, 0.4 * LARGE_BYTES, name)
                self.assertLess(now - was, 0.7 * LARGE_BYTES, name)

    def test_names_that_are_loopback_on_their_own_machine(self):
        # As Debian's installer writes /etc/hosts.
        hosts = ["127.0.0.1 localhost\n127.0.1.1 a\n10.213.78.2 b\n",
                 "127.0.0.1 localhost\n127.0.1.1 b\n10.213.78.1 a\n"]
        with ssh_fixture.SshMachines(hosts=hosts) as net:
            self.meet(net, "a:1,b:1")


if __name__ == "__main__":
    unittest.main()
