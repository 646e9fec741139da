"""Agents on two machines whose names resolve to several addresses, or to the wrong one.

addresses_test.py has the jobs that work: IPv6 alone, and a name that resolves to
127.0.1.1 on its own machine. Needs root.
"""

import json
import os
import subprocess
import unittest

import harness
import machines

REASON = machines.available()
COORDINATOR, WORKER = (os.path.join(harness.ROOT, p) for p in harness.PROGRAMS[1:])
PORT = 4001
SOCKET = "/tmp/agent"  # each machine has its own /tmp


class NamesCase(unittest.TestCase):
    def make(self, **kwargs):
        self.machines = machines.Machines(["n0", "n1"], **kwargs)
        self.machines.__enter__()
        self.addCleanup(self.machines.__exit__)
        self.log = open(os.path.join(self.machines.dir, "log"), "wb")
        self.addCleanup(self.log.close)
        self.secret = os.path.join(self.machines.dir, "secret")
        with open(self.secret, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write("of this test\n")

    def read_log(self):
        with open(self.log.name, errors="replace") as f:
            return f.read()

    def daemon(self, machine, argv):
        """Starts a daemon and waits until it is ready."""
        reader, writer = os.pipe()
        machine.start(argv + ["--announce_fd=%d" % writer, "--secret_file=" + self.secret, "--metrics="],
                      pass_fds=[writer], stdout=self.log, stderr=self.log)
        os.close(writer)
        with os.fdopen(reader) as f:
            self.assertIn("=", f.readline(), self.read_log())

    def start(self, listen, coordinator):
        self.daemon(self.machines[0], [COORDINATOR, "--listen=" + listen, "--start_timeout=8s"])
        for machine in self.machines:
            self.daemon(machine, [WORKER, "--socket=" + SOCKET, "--coordinator=" + coordinator,
                                  "--start_timeout=8s"])

    def ranks(self, timeout=60):
        """Runs two ranks on each machine; their completed processes."""
        started = []
        for rank in range(4):
            env = {"MAYPOLE_RANK": str(rank), "MAYPOLE_SIZE": "4", "MAYPOLE_LOCAL_RANK": str(rank % 2),
                   "MAYPOLE_LOCAL_SIZE": "2", "MAYPOLE_JOB": "names", "MAYPOLE_TOKEN": "t", "MAYPOLE_AGENT": SOCKET,
                   "MAYPOLE_START_TIMEOUT": "15"}
            started.append(self.machines[rank // 2].start(
                [harness.PYTHON, os.path.join(harness.ROOT, "tests/programs/where.py"), self.machines.dir],
                env=harness.environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        done = []
        for process in started:
            output, errors = process.communicate(timeout=timeout)
            done.append((process.returncode, output, errors))
        return done

    def check(self, listen, coordinator):
        self.start(listen, coordinator)
        for status, _, errors in self.ranks():
            self.assertEqual(status, 0, errors + self.read_log())
        for rank in range(4):
            with open(os.path.join(self.machines.dir, "rank.%d.json" % rank)) as f:
                record = json.load(f)
            self.assertEqual((record["host"], record["sum"]), ("n%d" % (rank // 2), 10))


def debian_hosts():
    """On each machine its own name is 127.0.1.1; the other's is right."""
    own = ["10.213.78.1", "10.213.78.2"]
    return ["127.0.0.1 localhost\n127.0.1.1 n%d\n%s n%d\n" % (i, own[1 - i], 1 - i) for i in range(2)]


@unittest.skipIf(REASON, REASON)
class LoopbackNameTest(NamesCase):
    def setUp(self):
        self.make(hosts=debian_hosts())

    # Its own name is where the coordinator listens: nobody else gets there.
    def test_coordinator_that_listens_on_its_own_name(self):
        self.start("n0:%d" % PORT, "n0:%d" % PORT)
        done = self.ranks()
        for status, _, errors in done:
            self.assertEqual(status, 1)
        last = done[2][2].splitlines()[-1]
        self.assertRegex(last, r"cannot reach the coordinator at n0:%d" % PORT)
        print(last)
        last = done[0][2].splitlines()[-1]
        # The ranks' timeout counts, not the daemons' --start_timeout.
        self.assertIn("the job did not start within 15 s: ranks 2,3 of 4 have not called init(); arrived: "
                      "node n0 with ranks 0,1", last)


@unittest.skipIf(REASON, REASON)
class BothFamiliesTest(NamesCase):
    def test_coordinator_by_name(self):
        self.make(addresses=[[v4, v6] for v4, v6 in zip(machines.V4, machines.V6)])
        self.check("[::]:%d" % PORT, "n0:%d" % PORT)


if __name__ == "__main__":
    unittest.main()
