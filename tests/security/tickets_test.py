"""Executors hold a ticket of their job instead of the cluster secret, and operators
have a secret of their own: a credential admits only to its own purpose, and each
refusal names the credential that is expected."""

import contextlib
import hashlib
import hmac
import os
import re
import shutil
import stat
import subprocess
import unittest

import cluster
import harness
from security_test import NOBODY, SECRET, TOKEN, executors

CTL = os.path.join(harness.ROOT, "client/ctl/maypolectl")
OPERATORS = "operator.secret.0a1b2c3d"
USER = 4242
GIVE_SECRET = "give --secret_file with the coordinator's secret"
GIVE_OPERATORS = "give maypolectl --operator_secret_file with the coordinator's operator secret"


def ticket(job, secret=SECRET):
    return "ticket1.%s.%s" % (hmac.new(secret.encode(), b"ticket of " + job.encode(), hashlib.sha256).hexdigest(), job)


def private_memory(pid):
    """All that the process can read and shares with no other, as one text."""
    parts = []
    with open("/proc/%d/maps" % pid) as maps, open("/proc/%d/mem" % pid, "rb", buffering=0) as memory:
        for line in maps:
            first, last, modes = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            if modes[0] != "r" or modes[3] != "p" or "[v" in line:
                continue
            with contextlib.suppress(OSError):  # of a device
                memory.seek(int(first, 16))
                parts.append(memory.read(int(last, 16) - int(first, 16)))
    return b"".join(parts)


def open_files(pid):
    """What is in the regular files that the process has open."""
    parts = []
    for fd in os.listdir("/proc/%d/fd" % pid):
        path = "/proc/%d/fd/%s" % (pid, fd)
        if stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "rb") as f:
                parts.append(f.read(1 << 20))
    return b"".join(parts)


class Jobs:
    """A coordinator with both secrets, two agents, and a job on them by each name, which runs until check()."""

    def __init__(self, c, *names, coordinator_flags=(), **kwargs):
        self.c = c
        self.flag = "--secret_file=" + c.secret(SECRET)
        self.operators = "--operator_secret_file=" + c.secret(OPERATORS, "operators")
        self.address = c.coordinator(self.flag, self.operators, *coordinator_flags)
        self.agents = [c.agent(n, self.address, self.flag) for n in (0, 1)]
        self.ranks = {}
        for job in names:
            os.mkdir(c.path(job))
            os.chmod(c.path(job), 0o777)
            self.ranks[job] = c.ranks(self.agents, job=job, token=TOKEN + job, args=["on"],
                                      env={"MAYPOLE_TEST_DIR": c.path(job)}, **kwargs)
        for job in names:
            for r in (0, 1):
                harness.wait_until(lambda: os.path.exists(c.path("%s/running.%d" % (job, r))), 60, "the jobs to run")

    def check(self):
        for job, ranks in self.ranks.items():
            assert [p.poll() for p in ranks] == [None, None], self.c.log(job + ".rank0")
            with open(self.c.path(job + "/enough"), "w"):
                pass
            self.c.check_ok(ranks)
            assert [self.c.record(r, job)["sum"] for r in (0, 1)] == [3.0, 3.0]


class CredentialsTest(unittest.TestCase):
    def test_a_credential_opens_no_other_door(self):
        with cluster.Cluster() as c:
            jobs = Jobs(c, "a", "b")
            self.executors_of_thieves(c, jobs.address)
            self.calls_of_operators(c, jobs.address)
            jobs.check()
            log = c.log("coordinator")
            for secret in (SECRET, OPERATORS, ticket("a"), ticket("b")):
                self.assertNotIn(secret, log)

    def executors_of_thieves(self, c, address):
        """Agents with --share_secret: their executors show what is in the file, as it is."""
        unknown = "the cluster secret is not this coordinator's; " + GIVE_SECRET + "; an operator: " + GIVE_OPERATORS
        taken = ticket("a").rsplit(".", 1)[0]
        for number, (shown, job, text) in enumerate((
                (ticket("a"), "b", "this is the ticket of job 'a', not of job 'b'"),
                (ticket("a"), "new", "this is the ticket of job 'a', not of job 'new'"),
                (ticket("a"), "a", "job 'a' is there with another token"),
                (taken + ".b", "b", unknown),
                (taken + ".", "b", unknown),
                (ticket("b")[:-2], "b", unknown),
                (ticket("b") + "b", "bb", unknown),
                (ticket("b", "an.earlier.secret.5f5f"), "b", unknown),
                (OPERATORS, "b", "this is the operator secret, with which nobody joins a job; give maypole-worker "
                                 "--secret_file with the coordinator's secret"),
                (None, "b", "this coordinator needs the cluster secret; " + GIVE_SECRET))):
            name = "thief%d" % number
            flags = ["--share_secret", "--secret_file=" + c.secret(shown, name + ".secret")] if shown else []
            agent = c.agent(2 + number, address, "--socket=" + c.path(name), *flags, name=name)
            os.mkdir(c.path(name + ".dir"))
            # He has b's token, but not a's.
            c.check_ok([c.rank(0, 2, agent, nodes=2, job=job, token=TOKEN + "b",
                               env={"MAYPOLE_TEST_DIR": c.path(name + ".dir")})])
            error = c.record(0, name + ".dir")["error"]
            self.assertIn(text, error)
            self.assertEqual(len(error.splitlines()), 1)
            c.processes[name].terminate()
            c.processes[name].wait()

    def calls_of_operators(self, c, address):
        commands = (["status"], ["jobs"], ["ranks", "b"], ["events"], ["timeline", "b"], ["abort", "b"], ["drain", "n0"],
                    ["dashboard"], ["top", "--looks=1"])
        give = GIVE_SECRET + "; an operator: " + GIVE_OPERATORS
        for shown, text in (
                (ticket("a"), "this is the ticket of job 'a', which is for the job's executors; " + GIVE_OPERATORS),
                (SECRET, "this is the cluster secret, which is for agents; " + GIVE_OPERATORS),
                (ticket("b")[:-1] + "c", "the cluster secret is not this coordinator's; " + give),
                (None, "this coordinator needs the cluster secret; " + give)):
            flags = ["--secret_file=" + c.secret(shown, "shown")] if shown else []
            for command in commands:
                said = self.ctl(address, flags, command)
                self.assertEqual((said.returncode, said.stdout), (1, ""), command)
                self.assertEqual(said.stderr, "maypolectl: coordinator %s: %s\n" % (address, text))
        said = self.ctl(address, ["--operator_secret_file=" + c.path("operators")], ["jobs"])
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertRegex(said.stdout, r"(?m)^a .*\n(?:.*\n)*b ")

    @staticmethod
    def ctl(address, flags, command):
        return subprocess.run([CTL, "--coordinator=" + address] + flags + command, capture_output=True, text=True,
                              timeout=60, env=harness.environment())

    def test_tickets_outlive_a_coordinator_but_not_its_secret(self):
        with cluster.Cluster() as c:
            jobs = Jobs(c, "a")
            for secret in (SECRET, "a.new.secret.77aa88bb"):
                c.processes["coordinator"].kill()
                c.processes["coordinator"].wait()
                c.coordinator("--secret_file=" + c.secret(secret), jobs.operators, "--listen=" + jobs.address)
                if secret == SECRET:
                    harness.wait_until(lambda: c.log("coordinator").count("event=session_taken_over") == 2, 20,
                                       "the executors to come back")
                    self.assertEqual([p.poll() for p in jobs.ranks["a"]], [None, None])
            for r, process in enumerate(jobs.ranks["a"]):
                self.assertNotEqual(process.wait(60), 0)
                self.assertIn("the cluster secret is not this coordinator's; " + GIVE_SECRET, c.log("a.rank%d" % r))


@unittest.skipIf(os.geteuid() != 0, "other users need root")
class ExecutorsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = harness.public_copy()
        cls.addClassCleanup(shutil.rmtree, cls.root, True)

    # As the job's user: what can I read of any process, and of the agents' directory?
    LOOK = """
import os, sys
sys.path.insert(0, sys.argv[1])
import tickets_test as t
looked = 0
for pid in filter(str.isdigit, os.listdir('/proc')):
    if int(pid) == os.getpid(): continue
    for what, look in (('memory', t.private_memory), ('files', t.open_files),
                       ('environ', lambda p: open('/proc/%d/environ' % p, 'rb').read()),
                       ('cmdline', lambda p: open('/proc/%d/cmdline' % p, 'rb').read())):
        try:
            seen = look(int(pid))
        except OSError:
            continue
        looked += what == 'memory'
        for word in (t.SECRET, t.OPERATORS, 'ticket1.'):
            if word.encode() in seen: print(word, 'in', what, 'of', pid)
for at, _, names in os.walk(sys.argv[2]):
    for name in names:
        try:
            seen = open(os.path.join(at, name), 'rb').read(1 << 20)
        except OSError:
            continue
        for word in (t.SECRET, t.OPERATORS, 'ticket1.'):
            if word.encode() in seen: print(word, 'in', os.path.join(at, name))
print('looked', looked)
"""

    def test_no_executor_holds_the_cluster_secret(self):
        user = ["setpriv", "--reuid=%d" % USER, "--regid=%d" % USER, "--clear-groups"]
        with cluster.Cluster(self.root) as c:
            jobs = Jobs(c, "a", prefix=user)
            for node in (0, 1):
                agent = c.processes["agent%d" % node].pid
                self.assertTrue(SECRET.encode() in private_memory(agent))  # so this finds one
                (executor,) = executors(agent)
                self.assertEqual(os.stat("/proc/%d/mem" % executor).st_uid, 0)  # it is not dumpable
                memory = private_memory(executor)
                self.assertTrue(ticket("a").encode() in memory)
                self.assertFalse(SECRET.encode() in memory, "an executor has the cluster secret")
                with open("/proc/%d/environ" % executor, "rb") as f:
                    self.assertNotIn(SECRET.encode(), f.read())
                self.assertFalse(SECRET.encode() in open_files(executor))
            looked = subprocess.run(
                user + [harness.PYTHON, "-c", self.LOOK, os.path.join(self.root, "tests/security"), c.dir],
                capture_output=True, text=True, timeout=120, env=harness.environment(root=self.root))
            self.assertEqual(looked.stderr, "")
            self.assertEqual(looked.stdout.splitlines()[:-1], [])
            self.assertGreaterEqual(int(looked.stdout.split()[-1]), 2)  # the ranks
            jobs.check()

    def test_the_ticket_is_of_the_job_not_of_its_user(self):
        """Two jobs of one user have different tickets, and neither executor has the other's."""
        user = ["setpriv", "--reuid=%d" % NOBODY, "--regid=%d" % NOBODY, "--clear-groups"]
        with cluster.Cluster(self.root) as c:
            jobs = Jobs(c, "a", "b", prefix=user)
            of_executors = [private_memory(e) for e in executors(c.processes["agent0"].pid)]
            self.assertEqual(sorted([ticket(job).encode() in memory for job in ("a", "b")] for memory in of_executors),
                             [[False, True], [True, False]])
            jobs.check()


if __name__ == "__main__":
    unittest.main()
