"""python3 without a launcher, and processes that find only some of a launcher's variables."""

import os
import unittest

import start_fixture


class PlainTest(start_fixture.StartTest):
    def test_size_1_at_once(self):
        self.start(start_fixture.program("notebook"))
        self.finish()
        self.check_places(1, [[0]])
        self.assertLess(self.record("rank.0.json")["seconds"], 1)
        self.assertEqual(os.listdir(self.runtime), [])

    def test_shutdown_and_init_again(self):
        self.start(start_fixture.program("twice"))
        self.finish()
        self.check_place(self.record("rank.0.json")["second"], 1, rank=0, local_size=1)

    def test_half_a_launcher_is_named(self):
        self.start(start_fixture.program("fail"), {"OMPI_COMM_WORLD_SIZE": "2"})
        self.finish()
        text = self.record("rank.0.json")["text"]
        self.assertIn("OMPI_COMM_WORLD_RANK is not set", text)
        self.assertNotIn("\n", text)

    def test_explicit_places_without_an_agent(self):
        explicit = {"MAYPOLE_SIZE": "2", "MAYPOLE_LOCAL_SIZE": "2", "MAYPOLE_JOB": "mine"}
        for rank in "01":
            self.start(start_fixture.program("sum"), dict(explicit, MAYPOLE_RANK=rank, MAYPOLE_LOCAL_RANK=rank))
        self.finish()
        self.check_places(2, [[0, 1]])

    def test_programs_one_after_another(self):
        # Ranks of the next find the service of the last one, or its end.
        where = os.path.join(start_fixture.harness.ROOT, "tests", "programs", "where.py")
        for rank in "0123":
            self.start(["sh", "-ec", 'for i in 1 2 3 4 5 6 7 8 9 10; do "$@"; done', "sh",
                        start_fixture.harness.PYTHON, where],
                       {"MAYPOLE_SIZE": "4", "MAYPOLE_LOCAL_SIZE": "4", "MAYPOLE_JOB": "mine", "MAYPOLE_RANK": rank,
                        "MAYPOLE_LOCAL_RANK": rank})
        self.finish()
        for rank in range(4):
            line = "rank %d of 4: local %d of 4, node 0 of 1: sum 10" % (rank, rank)
            self.assertEqual(self.output().count(line), 10, self.output())

    def test_a_program_that_comes_while_the_service_ends(self):
        hold = [self.start(start_fixture.program("hold"),
                           {"MAYPOLE_SIZE": "2", "MAYPOLE_LOCAL_SIZE": "2", "MAYPOLE_JOB": "mine",
                            "MAYPOLE_RANK": rank, "MAYPOLE_LOCAL_RANK": rank}) for rank in "01"]
        for rank in "01":
            self.await_record("rank.%s.json" % rank)
        self.processes.clear()
        for rank in "0123":
            self.start(start_fixture.program("following"),
                       {"MAYPOLE_SIZE": "4", "MAYPOLE_LOCAL_SIZE": "4", "MAYPOLE_JOB": "mine", "MAYPOLE_RANK": rank,
                        "MAYPOLE_LOCAL_RANK": rank})
        for rank in "0123":
            self.await_record("waits.%s.json" % rank)
        for process in hold:
            start_fixture.harness.kill_tree(process)
        self.finish()
        self.check_places(4, [[0, 1, 2, 3]])

    def test_the_variables_of_mpich(self):
        # MPICH itself is not installed.
        for rank in "01":
            self.start(start_fixture.program("sum"),
                       {"PMI_RANK": rank, "PMI_SIZE": "2", "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": "2"})
        self.finish()
        self.check_places(2, [[0, 1]])

    def test_who_is_missing_is_named(self):
        self.start(start_fixture.program("fail"), {
            "MAYPOLE_SIZE": "2", "MAYPOLE_LOCAL_SIZE": "2", "MAYPOLE_JOB": "mine", "MAYPOLE_RANK": "0",
            "MAYPOLE_LOCAL_RANK": "0", "MAYPOLE_START_TIMEOUT": "2"})
        self.finish()
        text = self.record("rank.0.json")["text"]
        self.assertIn("2 s", text)
        self.assertRegex(text, "rank.* 1|1 of 2")

    def test_other_nodes_that_nobody_can_find(self):
        self.start(start_fixture.program("fail"), {
            "MAYPOLE_SIZE": "4", "MAYPOLE_LOCAL_SIZE": "2", "MAYPOLE_JOB": "mine", "MAYPOLE_RANK": "0",
            "MAYPOLE_LOCAL_RANK": "0"})
        self.finish()
        self.assertIn("MAYPOLE_COORDINATOR=HOST:PORT", self.record("rank.0.json")["text"])

    def test_a_directory_of_somebody_else_is_refused(self):
        if os.geteuid() != 0:
            self.skipTest("needs root")
        explicit = {"MAYPOLE_SIZE": "2", "MAYPOLE_LOCAL_SIZE": "2", "MAYPOLE_JOB": "mine"}
        hold = self.start(start_fixture.program("hold"), dict(explicit, MAYPOLE_RANK="0", MAYPOLE_LOCAL_RANK="0"))
        start_fixture.harness.wait_until(lambda: os.listdir(self.runtime), 30, "the directory")
        name = os.path.join(self.runtime, os.listdir(self.runtime)[0])
        # Until the service has its guard, nobody is left who could remove it.
        start_fixture.harness.wait_until(lambda: set(os.listdir(name)) - {"lock", "log"}, 30, "the service")
        start_fixture.harness.kill_tree(hold)
        self.processes.clear()
        self.check_nothing_left()
        os.mkdir(name)
        os.chown(name, 65534, 65534)
        self.start(start_fixture.program("fail"), dict(explicit, MAYPOLE_RANK="0", MAYPOLE_LOCAL_RANK="0"))
        self.processes[0].wait(30)
        self.assertIn("is not a private directory of this user", self.record("rank.0.json")["text"])


if __name__ == "__main__":
    unittest.main()
