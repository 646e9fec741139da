"""Two users' jobs on one machine at the same time. Needs root to run as both users."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

import daemons
import harness

REASON = None if os.geteuid() == 0 else "needs root to become other users"
USERS = (65533, 65534)  # no names are needed
RANKS = 2


def become(uid):
    return ["setpriv", "--reuid=%d" % uid, "--regid=%d" % uid, "--clear-groups"]


@unittest.skipIf(REASON, REASON)
class TwoUsersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = harness.public_copy()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def directory(self, uid):
        path = tempfile.mkdtemp(prefix="mpu", dir="/tmp")
        self.addCleanup(shutil.rmtree, path, True)
        os.chmod(path, 0o700)
        os.chown(path, uid, uid)
        return path

    def start(self, uid, argv, env):
        process = subprocess.Popen(become(uid) + argv, env=harness.environment(env, self.root), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
        self.addCleanup(harness.end, process)
        return process

    def where(self, directory):
        return [harness.PYTHON, os.path.join(self.root, "tests/programs/where.py"), directory, "go"]

    def meet(self, directories, processes):
        """Both jobs run at the same time, and each computes its own sum."""
        for directory in directories:
            for rank in range(RANKS):
                harness.wait_until(lambda: os.path.exists(os.path.join(directory, "here.%d" % rank)) or
                                   any(p.poll() is not None for p in processes), 60, "rank %d" % rank)
        owners = self.owners_of_executors()
        for directory in directories:
            with open(os.path.join(directory, "go"), "w"):
                pass
        for process in processes:
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, errors)
        for directory in directories:
            for rank in range(RANKS):
                with open(os.path.join(directory, "rank.%d.json" % rank)) as f:
                    record = json.load(f)
                self.assertEqual((record["size"], record["sum"]), (RANKS, 3))
        return owners

    def owners_of_executors(self):
        owners = []
        for pid, (_, argv) in harness.processes().items():
            if "--executor" in argv and os.readlink("/proc/%d/exe" % pid).startswith(self.root):
                owners.append(os.stat("/proc/%d" % pid).st_uid)
        return sorted(owners)

    def test_two_launchers(self):
        directories = [self.directory(uid) for uid in USERS]
        processes = [self.start(uid, [os.path.join(self.root, harness.PROGRAMS[0]), "-np", str(RANKS)] +
                                self.where(directory), {})
                     for uid, directory in zip(USERS, directories)]
        self.assertEqual(self.meet(directories, processes), list(USERS))

    def start_job(self, d, uid, job, directory):
        """Starts the job's ranks, clients of the machine's only agent."""
        return [self.start(uid, self.where(directory), {
            "MAYPOLE_RANK": str(rank), "MAYPOLE_SIZE": str(RANKS), "MAYPOLE_LOCAL_RANK": str(rank),
            "MAYPOLE_LOCAL_SIZE": str(RANKS), "MAYPOLE_JOB": job, "MAYPOLE_TOKEN": "of %d" % uid,
            "MAYPOLE_AGENT": d.sockets[0], "MAYPOLE_START_TIMEOUT": "30"}) for rank in range(RANKS)]

    def agent(self):
        """Starts an agent as root, with programs that all users can read."""
        root, harness.ROOT = harness.ROOT, self.root
        self.addCleanup(setattr, harness, "ROOT", root)
        d = daemons.Daemons(1)
        d.__enter__()
        self.addCleanup(d.__exit__, None, None, None)
        os.chmod(d.dir, 0o755)
        return d

    def test_one_agent(self):
        d = self.agent()
        directories = [self.directory(uid) for uid in USERS]
        processes = sum((self.start_job(d, uid, "of%d" % uid, directory)
                         for uid, directory in zip(USERS, directories)), [])
        self.assertEqual(self.meet(directories, processes), list(USERS))

    # A process that listens in the agent's place could read tensors.
    def test_an_agent_of_another_user(self):
        at = self.directory(USERS[0])
        os.chmod(at, 0o755)
        path = os.path.join(at, "agent")
        self.start(USERS[0], [os.path.join(self.root, harness.PROGRAMS[2]), "--socket=" + path, "--metrics=",
                              "--coordinator=127.0.0.1:1", "--log_level=error"], {})
        harness.wait_until(lambda: os.path.exists(path), 10, "the agent")
        os.chmod(path, 0o666)
        rank = self.start(USERS[1], self.where(at), {
            "MAYPOLE_RANK": "0", "MAYPOLE_SIZE": "2", "MAYPOLE_LOCAL_RANK": "0", "MAYPOLE_LOCAL_SIZE": "2",
            "MAYPOLE_JOB": "j", "MAYPOLE_TOKEN": "t", "MAYPOLE_AGENT": path})
        _, errors = rank.communicate(timeout=30)
        self.assertEqual(rank.returncode, 1)
        last = errors.splitlines()[-1]
        self.assertIn("the agent at %s runs under uid %d, which is neither this user's (%d) nor root" %
                      (path, USERS[0], USERS[1]), last)
        print(last)

    # A job's name is the cluster's: the second gets one line, the first goes on.
    def test_one_name(self):
        d = self.agent()
        directories = [self.directory(uid) for uid in USERS]
        first = self.start_job(d, USERS[0], "training", directories[0])
        for rank in range(RANKS):
            harness.wait_until(lambda: os.path.exists(os.path.join(directories[0], "here.%d" % rank)), 60, "the first")
        for process in self.start_job(d, USERS[1], "training", directories[1]):
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 1)
            self.assertRegex(errors.splitlines()[-1], "job 'training' .*another token")
        print(errors.splitlines()[-1])
        self.assertIn(USERS[0], self.meet(directories[:1], first))


if __name__ == "__main__":
    unittest.main()
