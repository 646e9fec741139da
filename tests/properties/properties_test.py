"""Random programs of collectives against a plain reference, in many settings.

Each setting is a job that plays one program after the other for a while, on
agents with rings small enough to reach every edge case. At the end a table shows
their coverage. A failure prints the command that replays the
programs of its epoch. MAYPOLE_TEST_SECONDS: time per setting,
longer where a slow machine has not played the least number of programs by then;
MAYPOLE_TEST_PROGRAMS: maximal number of programs; MAYPOLE_TEST_SEED: seed of the
first one; MAYPOLE_TEST_LONG: incomplete coverage is a failure.
"""

import os
import random
import subprocess
import unittest

import coverage_table
import daemons
import harness

PROGRAM = os.path.join(harness.ROOT, "tests/properties/property_ranks")
SECONDS = float(os.environ.get("MAYPOLE_TEST_SECONDS", "1"))
PROGRAMS = int(os.environ.get("MAYPOLE_TEST_PROGRAMS", "1000000"))
SEED = int(os.environ.get("MAYPOLE_TEST_SEED") or random.SystemRandom().randrange(1, 10**9))
LONG = os.environ.get("MAYPOLE_TEST_LONG") == "1"


def again(test, stderr):
    """The command that replays the failure."""
    lines = [line for line in stderr.splitlines() if line.startswith("again: ")]
    what = dict(word.split("=") for word in lines[0].split()[1:]) if lines else {"seed": SEED, "programs": PROGRAMS}
    return ("again: bazel test -c opt --nocache_test_results --test_output=all --test_env=MAYPOLE_TEST_SECONDS=60 "
            "--test_env=MAYPOLE_TEST_SEED=%s --test_env=MAYPOLE_TEST_PROGRAMS=%s "
            "//tests/properties:properties_test --test_arg=%s" % (
                what["seed"], what["programs"], test.id().partition(".")[2]))


class PropertiesTest(unittest.TestCase):
    coverage = coverage_table.Coverage()

    @classmethod
    def tearDownClass(cls):
        print("\n" + cls.coverage.text(), flush=True)
        print("not covered: %s" % (", ".join(cls.coverage.gaps()) or "nothing"), flush=True)

    def play(self, layout, chunk_bytes, ring_depth, most_bytes=256 * 1024, least=20, env=None, times=1, options=()):
        seconds = SECONDS * times
        flags = ["--chunk_bytes=%d" % chunk_bytes]
        with daemons.Daemons(len(layout), flags + ["--ring_depth=%d" % ring_depth], env=env) as d:
            command = [PROGRAM, "--agents=" + d.agents, "--layout=" + ",".join(map(str, layout)), "--seed=%d" % SEED,
                       "--programs=%d" % PROGRAMS, "--seconds=%g" % seconds, "--least=%d" % least,
                       "--most_bytes=%d" % most_bytes] + flags + list(options)
            done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 3 * seconds,
                                  env=harness.environment(env))
            what = "%s ranks on %d nodes, agents' flags %s --ring_depth=%d" % (
                "+".join(map(str, layout)), len(layout), flags[0], ring_depth)
            events = self.coverage.add(done.stdout)
            print("%s, seed %d: %d programs, %d operations" % (what, SEED, events["programs"], events["operations"]),
                  flush=True)
            if done.returncode != 0:
                self.fail("%s\n%s%s" % (what, done.stderr, again(self, done.stderr)))
        self.assertGreaterEqual(events["programs"], min(PROGRAMS, least))

    # The three long ones: four ranks on one node, on two nodes, on unequal nodes.

    def test_four_ranks(self):
        self.play([4], 4096, 5, most_bytes=128 * 1024, times=5)

    def test_two_nodes_of_two_ranks(self):
        self.play([2, 2], 4096, 2, most_bytes=128 * 1024, times=5)

    def test_three_ranks_and_one(self):
        self.play([3, 1], 4096, 3, most_bytes=128 * 1024, times=5)

    # Other edges of the data path.

    def test_two_ranks_smallest_rings(self):
        self.play([2], 4096, 2)

    def test_two_ranks(self):
        self.play([2], 512 * 1024, 8, most_bytes=3 << 20, least=5)

    def test_two_ranks_that_sleep_at_once(self):
        self.play([2], 8192, 3, env={"MAYPOLE_SPIN_US": "0"})

    def test_three_ranks(self):
        self.play([3], 12288, 3)

    def test_two_nodes_of_one_rank(self):
        self.play([1, 1], 4096, 2, least=5)

    def test_three_nodes(self):
        self.play([1, 2, 1], 4096, 2, least=5)

    def test_four_ranks_on_two_nodes_large(self):
        self.play([2, 2], 65536, 4, most_bytes=1 << 20, least=5)

    def test_uneven_nodes(self):
        self.play([2, 1], 8192, 3, least=5)

    # A third of the tensors on a fake GPU, whose work is late and whose streams
    # overtake each other.

    def play_on_gpu(self, layout, fake):
        self.play(layout, 8192, 3, most_bytes=128 * 1024, least=5, options=["--cuda"], env={
            "LD_LIBRARY_PATH": os.path.join(harness.ROOT, "tests/gpu/fake"),
            "MAYPOLE_NCCL_LIBRARY": "none",
            "MAYPOLE_GPU_HOST_BYTES": "0",
            "MAYPOLE_FAKE_CUDA": "memory=2G,seed=%d%s" % (SEED, fake)})

    def test_cuda_four_ranks(self):
        self.play_on_gpu([4], "")

    def test_cuda_without_stream_writes(self):
        self.play_on_gpu([2], ",writes=0")

    def test_cuda_two_nodes(self):
        self.play_on_gpu([2, 1], "")

    @unittest.skipUnless(LONG, "needs a long run")
    def test_zz_everything_was_covered(self):
        self.assertEqual(self.coverage.gaps(), [])


if __name__ == "__main__":
    unittest.main()
