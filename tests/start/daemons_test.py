"""Ranks of other launchers that use permanent daemons."""

import os
import shutil
import unittest

import cluster
import harness
import start_fixture
from start_fixture import MPIRUN, mpirun


class DaemonsTest(start_fixture.StartTest):
    def setUp(self):
        super().setUp()
        self.cluster = cluster.Cluster()
        self.cluster.__enter__()
        self.addCleanup(self.cluster.__exit__, None, None, None)

    def own_daemons(self):
        return [argv[0] for argv in self.daemons().values()]

    @unittest.skipIf(MPIRUN is None, "Open MPI is not installed (openmpi-bin)")
    def test_a_coordinator_that_is_named(self):
        secret = self.cluster.secret()
        address = self.cluster.coordinator("--secret_file=" + secret)
        self.start(mpirun(2) + start_fixture.program("hold"),
                   {"MAYPOLE_COORDINATOR": address, "MAYPOLE_SECRET_FILE": secret})
        for rank in range(2):
            self.check_place(self.await_record("rank.%d.json" % rank), 2, rank=rank, local_size=2)
        self.assertFalse([p for p in self.own_daemons() if p.endswith("maypole-coordinator")])
        self.touch("go")
        self.finish()

    @unittest.skipIf(MPIRUN is None, "Open MPI is not installed (openmpi-bin)")
    def test_an_agent_that_runs_is_used(self):
        os.chmod(self.runtime, 0o700)
        address = self.cluster.coordinator()
        self.cluster.daemon("agent", "worker/maypole-worker", "--coordinator=" + address,
                            "--socket=" + os.path.join(self.runtime, "maypole-agent.sock"))
        runtime = os.path.join(self.dir, "meet")
        os.mkdir(runtime)
        self.start(mpirun(2) + start_fixture.program("hold"),
                   {"XDG_RUNTIME_DIR": self.runtime, "MAYPOLE_RUNTIME_DIR": runtime})
        for rank in range(2):
            self.check_place(self.await_record("rank.%d.json" % rank), 2, rank=rank, local_size=2)
        # The service alone: guard and service.
        self.assertEqual({os.path.basename(p) for p in self.own_daemons()}, {"maypolerun"})
        self.touch("go")
        self.processes[0].wait(60)
        harness.wait_until(lambda: not self.daemons(), 10, "the service to end")
        self.assertEqual(os.listdir(runtime), [])

    def test_who_is_missing_is_named_within_the_ranks_own_time(self):
        # The daemons' own timeout is 120 s.
        address = self.cluster.coordinator()
        sockets = [self.cluster.agent(i, address) for i in range(2)]
        for rank, socket in enumerate(sockets):
            self.start(start_fixture.program("fail"), {
                "MAYPOLE_SIZE": "4", "MAYPOLE_LOCAL_SIZE": str(rank + 1), "MAYPOLE_RANK": str(rank),
                "MAYPOLE_LOCAL_RANK": "0", "MAYPOLE_JOB": "j", "MAYPOLE_TOKEN": "t", "MAYPOLE_AGENT": socket,
                "MAYPOLE_START_TIMEOUT": "3"})
        for rank, process in enumerate(self.processes):
            self.assertEqual(process.wait(60), 0, self.output())
            text = self.record("rank.%d.json" % rank)["text"]
            self.assertIn("did not start within 3 s: ranks 2,3 of 4 have not called init(); arrived: node n0", text)
            self.assertIn("node n1 (host %s) with rank 1 (1 of its 2 ranks)" % os.uname().nodename, text)

    def test_an_agent_of_somebody_else_is_refused(self):
        if os.geteuid() != 0:
            self.skipTest("an agent of another user needs root")
        root = harness.public_copy()
        self.addCleanup(shutil.rmtree, root, True)
        theirs = os.path.join(self.dir, "theirs")
        os.mkdir(theirs)
        os.chown(theirs, 65534, 65534)
        socket = os.path.join(theirs, "agent.sock")
        self.cluster.root = root
        self.cluster.daemon("agent", "worker/maypole-worker", "--coordinator=127.0.0.1:1", "--socket=" + socket,
                            prefix=["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"])
        places = {"MAYPOLE_SIZE": "2", "MAYPOLE_LOCAL_SIZE": "2", "MAYPOLE_RANK": "0", "MAYPOLE_LOCAL_RANK": "0",
                  "MAYPOLE_JOB": "j", "MAYPOLE_AGENT": socket, "MAYPOLE_START_TIMEOUT": "5"}

        def error(**extra):
            process = self.start(start_fixture.program("fail"), dict(places, **extra))
            self.assertEqual(process.wait(60), 0, self.output())
            return self.record("rank.0.json")["text"]

        self.assertIn("runs under uid 65534, which is neither this user's (0) nor root: if you trust it, set "
                      "MAYPOLE_AGENT_UID=65534", error())
        self.assertNotIn("neither this user's", error(MAYPOLE_AGENT_UID="65534"))


if __name__ == "__main__":
    unittest.main()
