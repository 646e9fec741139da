"""Attackers on the network and on the node, at every port and socket. The jobs
continue, no attacker gets access, and no secret is visible to others."""

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time
import unittest

import cluster
import harness

SECRET = "cluster.secret.9f8e7d6c"
TOKEN = "job.token.1a2b3c4d"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NOBODY = 65534


def connect(address, seconds=5, source="127.0.0.1"):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=seconds, source_address=(source, 0))


def hung_up(sock, seconds):
    """True if the other side has closed the connection; earlier data is dropped."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            if not sock.recv(65536):
                return True
    except socket.timeout:
        return False
    except OSError:
        return True
    return False


def listening(pid):
    """TCP ports that the process listens at. Nobody but root may look into one
    that is not dumpable: PermissionError."""
    inodes = set()
    for fd in os.listdir("/proc/%d/fd" % pid):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(os.readlink("/proc/%d/fd/%s" % (pid, fd)))
    ports = []
    for family in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open("/proc/%d/net/%s" % (pid, family)) as f:
            for line in f.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and "socket:[%s]" % fields[9] in inodes:
                    ports.append(int(fields[1].split(":")[1], 16))
    return ports


def executors(agent):
    """Process ids of the executors of the agent with this process id."""
    return [p for p in harness.descendants(agent) if "--executor" in harness.processes().get(p, (0, []))[1]]


class Running:
    """Two agents with a job that must keep running during an attack."""

    def __init__(self, c, *coordinator_flags, secret=SECRET, **kwargs):
        self.c = c
        self.flag = "--secret_file=" + c.secret(secret) if secret else "--secret_file="
        self.address = c.coordinator(self.flag, *coordinator_flags, **kwargs)
        self.agents = [c.agent(n, self.address, self.flag) for n in (0, 1)]
        self.ranks = c.ranks(self.agents, token=TOKEN, args=["on"])
        for r in (0, 1):
            harness.wait_until(lambda: os.path.exists(c.path("running.%d" % r)), 60, "the job to run")

    def check(self):
        """Checks that the job has run all the time, and ends without an error."""
        for process in self.ranks:
            if process.poll() is not None:
                raise AssertionError("the job has ended")
        with open(self.c.path("enough"), "w"):
            pass
        self.c.check_ok(self.ranks)
        assert self.c.record(0)["sum"] == 3.0


class CoordinatorTest(unittest.TestCase):
    def test_who_does_not_know_the_secret_is_told_in_one_line(self):
        with cluster.Cluster() as c:
            address = c.coordinator("--secret_file=" + c.secret(SECRET))
            for flags, text in (([], "this coordinator needs the cluster secret"),
                                (["--secret_file=" + c.secret("another", "other")], "is not this coordinator's")):
                agent = c.agent(0, address, *flags)
                c.check_ok([c.rank(0, 2, agent, node=0, nodes=2)])
                error = c.record(0)["error"]
                self.assertEqual(len(error.splitlines()), 1)
                self.assertIn(text, error)
                self.assertIn("--secret_file", error)
                c.processes["agent0"].terminate()
                c.processes["agent0"].wait()
            self.assertNotIn(SECRET, c.log("coordinator"))

    def test_strangers_of_every_kind_and_the_job_goes_on(self):
        with cluster.Cluster() as c:
            job = Running(c)
            frame = struct.pack(">I", 0)[1:] + b"\x04\x00" + struct.pack(">I", 0)  # empty SETTINGS
            huge = b"\x7f\xff\xff\x00\x00" + struct.pack(">I", 1) + b"x" * 100000
            silent = [connect(job.address) for _ in range(20)]
            half = [connect(job.address) for _ in range(20)]
            for s in silent + half:
                self.addCleanup(s.close)
            for s in half:
                s.sendall(HTTP2[:10])
            for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(100000), HTTP2 + os.urandom(5000),
                         HTTP2 + huge, b"\x16\x03\x01\x02\x00\x01" + os.urandom(600)):
                with connect(job.address) as s:
                    with contextlib.suppress(OSError):
                        s.sendall(data)
                    self.assertTrue(hung_up(s, 20), data[:40])
            with connect(job.address) as s:  # speaks HTTP/2, never calls
                s.sendall(HTTP2 + frame)
                for kind in (silent, half):
                    for stranger in kind:
                        self.assertTrue(hung_up(stranger, 20), "who says nothing must not stay")
            job.check()
            self.assertEqual(c.processes["coordinator"].poll(), None)

    def test_a_crowd_of_strangers_keeps_nobody_out(self):
        with cluster.Cluster() as c:
            job = Running(c, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
            with contextlib.ExitStack() as crowd:
                for _ in range(400):
                    crowd.enter_context(connect(job.address, source="127.0.0.2"))
                harness.wait_until(lambda: "too many connections that have not called" in c.log("coordinator"), 10,
                                   "the coordinator to notice")
                agents = [c.agent(n, job.address, job.flag, "--socket=" + c.path("new%d.sock" % n), name="new%d" % n)
                          for n in (2, 3)]
                c.check_ok(c.ranks(agents, job="new"))
            job.check()
            self.assertNotIn("event=crowded", c.log("coordinator"))

    def test_a_crowd_that_takes_all_descriptors_and_goes_again(self):
        with cluster.Cluster() as c:
            # Without a secret nobody is a stranger.
            job = Running(c, secret=None, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
            crowd = []
            try:
                for _ in range(400):
                    with contextlib.suppress(OSError):
                        crowd.append(connect(job.address, 1))
                self.assertGreater(len(crowd), 256)
                harness.wait_until(lambda: "event=crowded" in c.log("coordinator"), 10, "the coordinator to notice")
            finally:
                for s in crowd:
                    s.close()

            def free():
                with connect(job.address) as s:
                    s.sendall(HTTP2)
                    s.settimeout(0.3)
                    try:
                        return s.recv(9) != b""
                    except OSError:
                        return False

            harness.wait_until(free, 20, "the coordinator to take connections again")
            agents = [c.agent(n, job.address, job.flag, "--socket=" + c.path("new%d.sock" % n), name="new%d" % n)
                      for n in (2, 3)]
            c.check_ok(c.ranks(agents, job="new"))
            job.check()

    def test_silent_connections_do_not_keep_a_scrape_out(self):
        with cluster.Cluster() as c:
            daemons = [c.daemon("coordinator", "coordinator/maypole-coordinator")]
            daemons.append(c.daemon("agent", "worker/maypole-worker", "--coordinator=" + daemons[0]["listen"],
                                    "--socket=" + c.path("agent.sock")))
            for daemon in daemons:
                with contextlib.ExitStack() as strangers:
                    for i in range(32):
                        s = strangers.enter_context(connect(daemon["metrics"]))
                        if i % 2:
                            s.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
                    with connect(daemon["metrics"]) as scrape:
                        scrape.settimeout(2)
                        scrape.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                        page = scrape.makefile("rb").read()
                    self.assertIn(b"\nmaypole_build_info{", page)


class NodeTest(unittest.TestCase):
    @unittest.skipIf(os.geteuid() != 0, "only root may see where an executor listens")
    def test_executors_let_no_stranger_in_while_a_job_starts(self):
        with cluster.Cluster() as c:
            flag = "--secret_file=" + c.secret(SECRET)
            # The stopped executor must not be lost before the other one listens.
            address = c.coordinator(flag, "--resume_timeout=60s")
            agents = [c.agent(n, address, flag) for n in (0, 1)]

            def executor(node):
                return harness.wait_until(lambda: executors(c.processes["agent%d" % node].pid), 20,
                                          "the executor of node %d" % node)[0]

            # Node 1 is stopped, so node 0 waits at its port for it.
            ranks = [c.rank(1, 2, agents[1], node=1, nodes=2)]
            second = executor(1)
            harness.wait_until(lambda: "ranks_ready" in c.log("coordinator"), 60, "rank 1 to be ready")
            os.kill(second, signal.SIGSTOP)
            strangers = []
            try:
                ranks.append(c.rank(0, 2, agents[0], node=0, nodes=2))
                first = executor(0)
                ports = harness.wait_until(lambda: listening(first), 30, "executor 0 to listen")
                where = "127.0.0.1:%d" % ports[0]
                for data in (b"", b"half a", os.urandom(48), os.urandom(5000), b"\0" * 48, b"\xff" * 48):
                    for _ in range(25):
                        # (Its queue may be full: it accepts no connection before it knows its peers.)
                        with contextlib.suppress(OSError):
                            s = connect(where, 0.1)
                            self.addCleanup(s.close)
                            strangers.append(s)
                            s.sendall(data)
                self.assertGreater(len(strangers), 100)
            finally:
                os.kill(second, signal.SIGCONT)
            c.check_ok(ranks)
            self.assertEqual([c.record(r)["sum"] for r in (0, 1)], [3.0, 3.0])
            for s in strangers:
                s.close()
            for node in (0, 1):
                self.assertNotIn("how=\"killed", c.log("agent%d" % node))

    @unittest.skipIf(os.geteuid() != 0, "only root may see where an executor listens")
    def test_once_it_runs_an_executor_listens_nowhere(self):
        with cluster.Cluster() as c:
            job = Running(c)
            # The look itself works.
            port = int(job.address.rsplit(":", 1)[1])
            self.assertIn(port, listening(c.processes["coordinator"].pid))
            for node in (0, 1):
                agent = c.processes["agent%d" % node].pid
                self.assertEqual(len(executors(agent)), 1)
                for pid in harness.descendants(agent):
                    self.assertEqual(listening(pid), [])
            job.check()

    def test_nothing_secret_on_command_lines_and_in_logs(self):
        with cluster.Cluster() as c:
            job = Running(c, "--log_level=trace")
            names = ["coordinator", "agent0", "agent1"]
            table = harness.processes()
            seen = 0
            for name in names:
                pid = c.processes[name].pid
                for p in [pid] + harness.descendants(pid):
                    line = "\0".join(table[p][1])
                    seen += 1
                    for word in (SECRET, TOKEN):
                        self.assertNotIn(word, line)
                        with open("/proc/%d/environ" % p, "rb") as f:
                            self.assertNotIn(word.encode(), f.read())
            self.assertGreaterEqual(seen, 5)  # coordinator, two agents, two executors
            job.check()
            for name in names:
                log = c.log(name)
                self.assertIn("event=", log)
                for word in (SECRET, TOKEN):
                    self.assertNotIn(word, log)

    def test_no_core_files_of_who_knows_the_secret(self):
        with cluster.Cluster() as c:
            job = Running(c, preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
            for name in ("coordinator", "agent0"):
                pid = c.processes[name].pid
                for p in [pid] + harness.descendants(pid):
                    with open("/proc/%d/limits" % p) as f:
                        self.assertRegex(f.read(), r"Max core file size\s+0 ")
            job.check()

    def test_a_wrong_token_is_refused_on_the_node_and_by_the_coordinator(self):
        with cluster.Cluster() as c:
            job = Running(c)
            c.check_ok([c.rank(0, 2, job.agents[0], token="guess", nodes=2)])
            self.assertIn("is there with another token", c.record(0)["error"])
            third = c.agent(2, job.address, job.flag)
            c.check_ok([c.rank(0, 2, third, token="guess", nodes=2)])
            self.assertIn("is there with another token", c.record(0)["error"])
            self.assertNotIn("guess", c.log("coordinator") + c.log("agent0"))
            job.check()


@unittest.skipIf(os.geteuid() != 0, "other users need root")
class OtherUsersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = harness.public_copy()
        cls.addClassCleanup(shutil.rmtree, cls.root, True)

    @staticmethod
    def user(uid):
        return ["setpriv", "--reuid=%d" % uid, "--regid=%d" % uid, "--clear-groups"]

    def run_as(self, uid, code, *args):
        return subprocess.run(self.user(uid) + [harness.PYTHON, "-c", code] + [str(a) for a in args],
                              capture_output=True, text=True, timeout=60, env=harness.environment(root=self.root))

    def test_a_job_of_one_user_and_another_user_at_its_agent(self):
        with cluster.Cluster(self.root) as c:
            flag = "--secret_file=" + c.secret(SECRET)
            address = c.coordinator(flag)
            agents = [c.agent(n, address, flag) for n in (0, 1)]
            # A crowd of another user that says nothing, at the agent's socket.
            code = ("import socket, sys, time\n"
                    "held = []\n"
                    "for i in range(900):\n"
                    "    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                    "    s.connect(sys.argv[1])\n"
                    "    held.append(s)\n"
                    "    if i % 3 == 0: s.send(b'garbage')\n"
                    "print('held', flush=True)\n"
                    "time.sleep(60)\n")
            crowd = subprocess.Popen(self.user(NOBODY) + [harness.PYTHON, "-c", code, agents[0]],
                                     stdout=subprocess.PIPE, text=True)
            self.addCleanup(crowd.wait)
            self.addCleanup(crowd.kill)
            self.addCleanup(crowd.stdout.close)
            self.assertEqual(crowd.stdout.readline(), "held\n")
            ranks = c.ranks(agents, token=TOKEN, args=["on"], prefix=self.user(4242))
            for r in (0, 1):
                harness.wait_until(lambda: os.path.exists(c.path("running.%d" % r)), 60, "the job to run")
            # Another user who knows even the job's name and token is in no job
            # of its own name with it: the coordinator has the node already.
            other = c.rank(0, 2, agents[0], nodes=2, token=TOKEN, prefix=self.user(NOBODY),
                           env={"MAYPOLE_TEST_DIR": self.directory_of(NOBODY)})
            c.check_ok([other])
            with open(os.path.join(self.directory_of(NOBODY), "rank.0.json")) as f:
                self.assertIn("is in job 'job' already", f.read())
            self.look_at_executors(c)
            with open(c.path("enough"), "w"):
                pass
            c.check_ok(ranks)
            self.assertEqual(c.record(1)["sum"], 3.0)

    def test_one_user_cannot_take_all_executors(self):
        with cluster.Cluster(self.root) as c:
            flag = "--secret_file=" + c.secret(SECRET)
            agents = [c.agent(0, c.coordinator(flag), flag)]
            # A Hello (common/wire/session_messages.h) of a rank that waits for another, in job after job.
            code = ("import socket, struct, sys\n"
                    "held = []\n"
                    "for i in range(65):\n"
                    "    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                    "    s.connect(sys.argv[1])\n"
                    "    body = struct.pack('<7iIQ2i4q2I64s128s64s', 0, 2, 0, 2, 0, 1, 1, 0, 0, 0, 0, -1, -1, -1, -1, 0, int(sys.argv[2]),\n"
                    "                       b'job%d' % i, b'token', b'host')\n"
                    "    s.send(struct.pack('<4I', 0x4D41594C, int(sys.argv[2]), 1, 16 + len(body)) + body)\n"
                    "    held.append(s)\n"
                    "s.settimeout(30)\n"
                    "print(s.recv(4096)[24:].split(b'\\0')[0].decode(), flush=True)\n"
                    "sys.stdin.read()\n")
            crowd = subprocess.Popen(self.user(NOBODY) + [harness.PYTHON, "-c", code, agents[0], harness.protocol_version()],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.addCleanup(crowd.wait)
            self.addCleanup(crowd.kill)
            self.addCleanup(crowd.stdout.close)
            self.addCleanup(crowd.stdin.close)
            self.assertRegex(crowd.stdout.readline(),
                             r"^this agent serves 64 jobs of uid %d already, its limit for one user" % NOBODY)
            # Others find room.
            c.check_ok(c.ranks(agents, token=TOKEN, prefix=self.user(4242)))
            self.assertEqual(c.record(0)["sum"], 1.0)

    def test_a_user_sets_variables_of_nccl_but_chooses_no_code_for_his_executor(self):
        with cluster.Cluster(self.root) as c:
            flag = "--secret_file=" + c.secret(SECRET)
            agent = c.agent(0, c.coordinator(flag), flag)
            mine = {"NCCL_SOCKET_IFNAME": "^virbr0,lo", "NCCL_NET_PLUGIN": "/tmp/mine.so", "PATH": "/tmp/mine:/usr/bin:/bin",
                    "CUDA_INJECTION64_PATH": "/tmp/mine.so", "CUDA_VISIBLE_DEVICES": "7", "LD_LIBRARY_PATH": "/tmp/mine"}
            ranks = c.ranks([agent], token=TOKEN, args=["on"], prefix=self.user(4242), env=mine)
            harness.wait_until(lambda: os.path.exists(c.path("running.0")), 60, "the job to run")
            (executor,) = executors(c.processes["agent0"].pid)
            with open("/proc/%d/environ" % executor) as f:
                there = dict(v.split("=", 1) for v in f.read().split("\0") if v)
            with open("/proc/%d/environ" % c.processes["agent0"].pid) as f:
                agents = dict(v.split("=", 1) for v in f.read().split("\0") if v)
            agents.update(NCCL_SOCKET_IFNAME="^virbr0,lo", NCCL_CONF_FILE="/dev/null")
            self.assertEqual(there, agents)
            (names,) = re.findall(r'event=variables_left_out job=job uid=4242 names="(.*)"', c.log("agent0"))
            self.assertEqual(sorted(names.split(",")), ["CUDA_INJECTION64_PATH", "NCCL_NET_PLUGIN"])
            with open(c.path("enough"), "w"):
                pass
            c.check_ok(ranks)

    def test_a_secret_file_of_another_user_is_refused(self):
        with cluster.Cluster(self.root) as c:
            path = c.secret(SECRET)
            os.chown(path, NOBODY, NOBODY)
            for program, flags in (("coordinator/maypole-coordinator", []),
                                   ("worker/maypole-worker", ["--coordinator=127.0.0.1:1"])):
                ended = subprocess.run([os.path.join(self.root, program), "--secret_file=" + path] + flags,
                                       capture_output=True, text=True, timeout=30)
                self.assertNotEqual(ended.returncode, 0)
                self.assertIn("secret file %s: belongs to uid %d" % (path, NOBODY), ended.stderr)

    def test_a_directory_service_that_hangs_holds_up_nobody_else(self):
        with cluster.Cluster(self.root) as c:
            flag = "--secret_file=" + c.secret(SECRET)
            # For the agent and its executors: a list of users that nobody ever writes.
            fifo = c.path("passwd")
            os.mkfifo(fifo)
            hanging = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"', fifo]
            agents = [c.agent(0, c.coordinator(flag), flag, prefix=hanging)]
            os.mkdir(c.path("held.up"))
            os.chmod(c.path("held.up"), 0o777)
            held_up = c.ranks(agents, job="held.up", token=TOKEN, prefix=self.user(4242),
                              env={"MAYPOLE_TEST_DIR": c.path("held.up")})
            harness.wait_until(lambda: executors(c.processes["agent0"].pid), 60, "an executor that looks up its user")
            # For root no group lookup is needed.
            c.check_ok(c.ranks(agents, token=TOKEN))
            self.assertEqual(c.record(0)["sum"], 1.0)
            c.check_ok(held_up)
            self.assertRegex(c.record(0, "held.up")["error"],
                             r"the groups of uid 4242 could not be looked up in 10 s: the node's directory service")

    def directory_of(self, uid):
        path = "/tmp/mpu%d.%d" % (os.getpid(), uid)
        if not os.path.exists(path):
            os.mkdir(path)
            os.chown(path, uid, uid)
            self.addCleanup(shutil.rmtree, path, True)
        return path

    def look_at_executors(self, c):
        """The job's own user cannot look into its executor; it has the cluster's secret."""
        found = 0
        for name in ("agent0", "agent1"):
            for pid in harness.descendants(c.processes[name].pid):
                with open("/proc/%d/status" % pid) as f:
                    uid = int(re.search(r"Uid:\s+(\d+)", f.read()).group(1))
                if uid == NOBODY:
                    continue  # of his own attempt
                self.assertEqual(uid, 4242)
                found += 1
                code = ("import os, sys\n"
                        "for what in ('environ', 'mem', 'maps', 'fd'):\n"
                        "    path = '/proc/%s/%s' % (sys.argv[1], what)\n"
                        "    try:\n"
                        "        os.listdir(path) if what == 'fd' else open(path, 'rb').read(1)\n"
                        "        print('can read', path)\n"
                        "    except PermissionError: pass\n"
                        "import ctypes\n"
                        "libc = ctypes.CDLL(None, use_errno=True)\n"
                        "if libc.ptrace(16, int(sys.argv[1]), 0, 0) == 0: print('can trace')\n")
                looked = self.run_as(4242, code, pid)
                self.assertEqual((looked.returncode, looked.stdout, looked.stderr), (0, "", ""))
        self.assertEqual(found, 2)

    def test_a_program_file_that_users_cannot_read_is_safe_from_its_first_instruction(self):
        program = os.path.join(self.root, "worker/maypole-worker")
        os.chmod(program, 0o711)
        self.addCleanup(os.chmod, program, 0o755)
        with cluster.Cluster(self.root) as c:
            flag = "--secret_file=" + c.secret(SECRET)
            address = c.coordinator(flag)
            agents = [c.agent(n, address, flag) for n in (0, 1)]
            c.check_ok(c.ranks(agents, prefix=self.user(4242)))
        # The kernel does not let a user inspect a process whose program file he cannot read.
        code = ("import os, sys\n"
                "child = os.fork()\n"
                "if child == 0: os.execv(sys.argv[1], [sys.argv[1], '--help'])\n"
                "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
                "print(os.stat('/proc/%d/mem' % child).st_uid)\n")
        looked = self.run_as(4242, code, program)
        self.assertEqual(looked.stdout.splitlines()[-1], "0", looked.stderr)

    def test_an_agent_of_a_user_serves_that_user_only(self):
        with cluster.Cluster(self.root) as c:
            address = c.coordinator()
            agent = c.agent(0, address, prefix=self.user(4242))
            os.chmod(agent, 0o666)  # as if its owner had opened it
            ranks = [c.rank(0, 2, agent, nodes=2, prefix=self.user(NOBODY))]
            c.check_ok(ranks)
            self.assertRegex(c.record(0)["error"], r"uid 4242")


if __name__ == "__main__":
    unittest.main()
