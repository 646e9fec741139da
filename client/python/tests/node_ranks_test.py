"""maypole-node-ranks: places by the node's variables, and how the ranks end. No job is started."""

import os
import signal
import subprocess
import sys
import time
import unittest

from maypole import node_ranks

NODE = {"MAYPOLE_CROSS_RANK": "1", "MAYPOLE_CROSS_SIZE": "3", "MAYPOLE_LOCAL_SIZE": "2"}


class PlaceTest(unittest.TestCase):
    def test_equal_nodes(self):
        node = node_ranks.place(NODE)
        self.assertEqual((node.first_rank, node.size), (2, 6))
        self.assertEqual(node_ranks.rank_variables(node, 1), {
            "MAYPOLE_RANK": "3", "MAYPOLE_SIZE": "6", "MAYPOLE_LOCAL_RANK": "1", "MAYPOLE_LOCAL_SIZE": "2",
            "MAYPOLE_CROSS_RANK": "1", "MAYPOLE_CROSS_SIZE": "3"})

    def test_one_rank_on_each_node_by_default(self):
        node = node_ranks.place({"MAYPOLE_CROSS_RANK": "1", "MAYPOLE_CROSS_SIZE": "3", "MAYPOLE_LOCAL_SIZE": ""})
        self.assertEqual(node, (1, 3, 1, 1, 3))

    def test_nodes_that_differ(self):
        node = node_ranks.place(dict(NODE, MAYPOLE_RANK="4", MAYPOLE_SIZE="7"))
        self.assertEqual((node.first_rank, node.local_size, node.size), (4, 2, 7))

    def test_each_mistake_is_named(self):
        for wrong, text in (
                ({"MAYPOLE_CROSS_SIZE": ""}, "MAYPOLE_CROSS_SIZE is not set"),
                ({"MAYPOLE_CROSS_RANK": "x"}, "MAYPOLE_CROSS_RANK='x': expected a number, 0 or larger"),
                ({"MAYPOLE_CROSS_RANK": "3"}, "MAYPOLE_CROSS_RANK=3 does not fit MAYPOLE_CROSS_SIZE=3"),
                ({"MAYPOLE_LOCAL_SIZE": "0"}, "MAYPOLE_LOCAL_SIZE='0': expected a number, 1 or larger"),
                ({"MAYPOLE_SIZE": "6"},
                 "set both MAYPOLE_RANK (of this node's first rank) and MAYPOLE_SIZE, or neither"),
                ({"MAYPOLE_RANK": "5", "MAYPOLE_SIZE": "6"}, "ranks 5 to 6 do not fit MAYPOLE_SIZE=6")):
            with self.assertRaises(ValueError) as raised:
                node_ranks.place(dict(NODE, **wrong))
            self.assertEqual(str(raised.exception), text)


class EndTest(unittest.TestCase):
    def start(self, *command, **variables):
        env = dict(os.environ, **NODE, PYTHONPATH=os.pathsep.join(sys.path), **variables)
        process = subprocess.Popen([sys.executable, "-m", "maypole.node_ranks", *command], env=env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        return process

    def test_all_ranks_run(self):
        out, err = self.start("sh", "-c", "echo $MAYPOLE_RANK of $MAYPOLE_SIZE").communicate(timeout=30)
        self.assertEqual((sorted(out.splitlines()), err), (["2 of 6", "3 of 6"], ""))

    def test_the_status_is_that_of_the_first_rank_that_fails(self):
        process = self.start("sh", "-c", "test $MAYPOLE_RANK = 2 || exit 7; exec sleep 60")
        self.assertRegex(process.stderr.readline(), r"^maypole-node-ranks: rank 3 \(pid \d+\) ended with status 7$")
        self.assertEqual(process.wait(timeout=30), 7)

    def test_a_rank_that_is_killed(self):
        process = self.start("sh", "-c", "test $MAYPOLE_RANK = 2 || kill -9 $$")
        self.assertEqual(process.wait(timeout=30), 137)

    def test_sigterm_reaches_the_ranks(self):
        process = self.start("sh", "-c", "trap 'echo ended; exit' TERM; echo here; while :; do sleep 0.05; done")
        self.assertEqual([process.stdout.readline() for _ in range(2)], ["here\n"] * 2)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 143)
        self.assertEqual(process.stdout.read(), "ended\n" * 2)

    def test_ranks_have_time_for_a_checkpoint_after_sigterm(self):
        # Longer than the others have when a rank fails; a second SIGTERM does not make it less.
        process = self.start("sh", "-c", "trap 'sleep 6; echo saved; exit' TERM; echo here; while :; do sleep 0.05; done")
        self.assertEqual([process.stdout.readline() for _ in range(2)], ["here\n"] * 2)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 143)
        self.assertEqual(process.stdout.read(), "saved\n" * 2)
        stubborn = self.start("--stop-timeout", "0.3", "sh", "-c", "trap '' TERM; echo here; exec sleep 60")
        self.assertEqual([stubborn.stdout.readline() for _ in range(2)], ["here\n"] * 2)
        stubborn.send_signal(signal.SIGTERM)
        self.assertEqual(stubborn.wait(timeout=30), 143)

    def test_usr1_and_usr2_reach_the_ranks(self):
        process = self.start("sh", "-c", "trap 'echo one' USR1; trap 'echo two; exit' USR2; echo here; "
                                         "while :; do sleep 0.05; done")
        for sent, said in ((None, "here\n"), (signal.SIGUSR1, "one\n"), (signal.SIGUSR2, "two\n")):
            if sent is not None:
                process.send_signal(sent)
            self.assertEqual([process.stdout.readline() for _ in range(2)], [said] * 2)
        self.assertEqual(process.wait(timeout=30), 0)

    def test_commands_that_cannot_run(self):
        for command, status, text in ((["/nonexistent/program"], 127, "cannot run /nonexistent/program: No such file"),
                                      ([], 2, "give the command of the ranks")):
            process = self.start(*command)
            _, err = process.communicate(timeout=30)
            self.assertEqual(process.returncode, status)
            self.assertIn(text, err)


if __name__ == "__main__":
    unittest.main()
