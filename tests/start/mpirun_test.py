"""Jobs started by Open MPI's mpirun."""

import os
import shutil
import signal
import time
import unittest

import harness
import start_fixture
from start_fixture import MPIRUN, mpirun

MPIEXEC = shutil.which("mpiexec.hydra", path=harness.environment()["PATH"])


@unittest.skipIf(MPIRUN is None, "Open MPI is not installed (openmpi-bin)")
class OneNodeTest(start_fixture.StartTest):
    def test_four_ranks(self):
        self.start(mpirun(4) + start_fixture.program("sum"))
        self.finish()
        self.check_places(4, [[0, 1, 2, 3]])

    def test_one_rank_is_alone_and_starts_nothing(self):
        self.start(mpirun(1) + start_fixture.program("sum"))
        self.finish()
        self.check_places(1, [[0]])

    def test_shutdown_and_init_again(self):
        self.start(mpirun(2) + start_fixture.program("twice"))
        self.finish()
        for rank in range(2):
            seen = self.record("rank.%d.json" % rank)
            for epoch in ("first", "second"):
                self.check_place(seen[epoch], 2, rank=rank, local_size=2)

    def test_a_forked_child_keeps_nothing_alive(self):
        job = self.start(mpirun(2) + start_fixture.program("notebook"), {"FORK": "1"})
        seen = [self.await_record("rank.%d.json" % r) for r in range(2)]
        try:
            job.wait(60)
            self.check_nothing_left()
            for record in seen:
                self.assertTrue(harness.alive(record["child"]))
                self.check_place(record, 2, local_size=2)
        finally:
            for record in seen:
                os.kill(record["child"], signal.SIGKILL)

    @unittest.skipIf(os.geteuid() != 0, "only root can see an executor's environment")
    def test_variables_of_nccl_reach_the_executor_which_sees_all_gpus(self):
        self.start(mpirun(2, "-x", "NCCL_SOCKET_IFNAME=^virbr0,lo", "-x", "CUDA_VISIBLE_DEVICES=1") +
                   start_fixture.program("hold"))
        for rank in range(2):
            self.await_record("rank.%d.json" % rank)
        (executor,) = [pid for pid, argv in self.daemons().items() if "--executor" in argv]
        with open("/proc/%d/environ" % executor) as f:
            environment = dict(v.split("=", 1) for v in f.read().split("\0") if v)
        self.assertEqual(environment["NCCL_SOCKET_IFNAME"], "^virbr0,lo")
        self.assertNotIn("CUDA_VISIBLE_DEVICES", environment)
        self.touch("go")
        self.finish()

    def hold(self, ranks=3):
        self.start(mpirun(ranks) + start_fixture.program("hold"))
        return [self.await_record("rank.%d.json" % r) for r in range(ranks)]

    def services(self):
        """(guard, service) of the node service."""
        guards = [p for p, argv in self.daemons().items() if "--node-service" in argv]
        table = harness.processes()
        service = next(p for p in guards if table[p][0] in guards)
        return table[service][0], service

    def test_kill_9_of_all_ranks_leaves_nothing(self):
        ranks = self.hold()
        self.assertEqual(len(os.listdir(self.runtime)), 1)
        for rank in ranks:
            os.kill(rank["pid"], signal.SIGKILL)
        self.check_nothing_left()
        self.assertNotEqual(self.processes[0].wait(30), 0)

    def test_kill_9_of_the_service_is_told(self):
        self.hold()
        _, service = self.services()
        killed = time.time()
        os.kill(service, signal.SIGKILL)
        for rank in range(3):
            error = self.await_record("rank.%d.error.json" % rank)
            self.assertLess(error["after"] - killed, 5)
            self.assertIn("the executor of job 'mpirun.", error["text"])
            self.assertIn("was stopped", error["text"])
        self.processes[0].wait(30)
        self.check_nothing_left()

    def test_kill_9_of_the_guard_changes_nothing(self):
        self.hold()
        guard, _ = self.services()
        os.kill(guard, signal.SIGKILL)
        self.touch("go")
        self.finish()

    def test_an_agent_that_cannot_start_is_told_in_one_line(self):
        bin_dir = os.path.join(self.dir, "bin dir")
        os.mkdir(bin_dir)
        shutil.copy(os.path.join(harness.ROOT, harness.PROGRAMS[0]), bin_dir)
        with open(os.path.join(bin_dir, "maypole-coordinator"), "w") as f:
            f.write("#!/bin/sh\necho no coordinator today >&2\nexit 3\n")
        os.chmod(f.name, 0o755)
        self.start(mpirun(2) + start_fixture.program("fail"), {"MAYPOLE_BIN": bin_dir})
        self.finish()
        for rank in range(2):
            text = self.record("rank.%d.json" % rank)["text"]
            self.assertIn("coordinator", text)
            self.assertIn("no coordinator today", text)
            self.assertNotIn("\n", text)

    def test_programs_that_are_missing_are_named(self):
        self.start(mpirun(2) + start_fixture.program("fail"), {"MAYPOLE_BIN": "/nonexistent"})
        self.finish()
        self.assertIn("/nonexistent/maypolerun (MAYPOLE_BIN) is not an executable file", self.record("rank.0.json")["text"])

    def test_daemons_that_are_missing_are_named(self):
        bin_dir = os.path.join(self.dir, "bin")
        os.mkdir(bin_dir)
        # A copy: beside the target of a link they would be found.
        shutil.copy(os.path.join(harness.ROOT, harness.PROGRAMS[0]), bin_dir)
        path = os.pathsep.join([os.path.dirname(MPIRUN), "/usr/bin", "/bin"])
        self.start(mpirun(2) + start_fixture.program("fail"), {"MAYPOLE_BIN": bin_dir, "PATH": path})
        self.finish()
        for rank in range(2):
            text = self.record("rank.%d.json" % rank)["text"]
            self.assertIn("maypole-coordinator is neither beside maypolerun (%s" % bin_dir, text)
            self.assertNotIn("\n", text)

    def test_two_users_at_once(self):
        if os.geteuid() != 0:
            self.skipTest("a second user needs root")
        root = harness.public_copy()
        self.addCleanup(shutil.rmtree, root, True)
        theirs = os.path.join(self.dir, "theirs")
        os.mkdir(theirs)
        os.chown(theirs, 65534, 65534)
        user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        self.start(mpirun(2) + start_fixture.program("hold"))
        self.start(user + mpirun(2) + start_fixture.program("hold", root),
                   {"MAYPOLE_TEST_DIR": theirs, "HOME": theirs, "TMPDIR": theirs}, root)
        for rank in range(2):
            for where in ("", "theirs"):
                self.check_place(self.await_record(os.path.join(where, "rank.%d.json" % rank)), 2, rank=rank)
        for directory in os.listdir(self.runtime):
            self.assertEqual(os.stat(os.path.join(self.runtime, directory)).st_mode & 0o777, 0o700)
        self.assertEqual(len(os.listdir(self.runtime)), 2)
        self.touch("go")
        self.touch("theirs/go")
        self.finish()


@unittest.skipIf(MPIEXEC is None, "MPICH is not installed (mpich)")
class MpichTest(start_fixture.StartTest):
    def test_one_node(self):
        self.start([MPIEXEC, "-n", "3"] + start_fixture.program("sum"))
        self.finish()
        self.check_places(3, [[0, 1, 2]])

    def test_two_at_once_are_two_jobs(self):
        held = self.start([MPIEXEC, "-n", "2"] + start_fixture.program("hold"))
        for rank in range(2):
            self.await_record("rank.%d.json" % rank)
        self.assertEqual(len(os.listdir(self.runtime)), 1)
        self.start([MPIEXEC, "-n", "2"] + start_fixture.program("hold"))
        harness.wait_until(lambda: len(os.listdir(self.runtime)) == 2, 60, "the second job's directory")
        self.assertIsNone(held.poll())

    def test_several_nodes_want_a_name(self):
        self.start([MPIEXEC, "-n", "2", "-launcher", "fork", "-hosts", "localhost,%s" % os.uname().nodename, "-ppn", "1"]
                   + start_fixture.program("fail"))
        self.processes[0].wait(60)
        self.assertIn("set MAYPOLE_JOB to a unique name on all ranks", self.record("rank.0.json")["text"])


if __name__ == "__main__":
    unittest.main()
