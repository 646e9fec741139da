"""maypole.tensorflow's training layer with each TensorFlow of environments.py, on real jobs.

The checks on the ranks are in tests/programs/tensorflow.
"""

import glob
import json
import os
import subprocess
import tempfile
import unittest

import environments
import harness

PROGRAMS = os.path.join(harness.ROOT, "tests/programs/tensorflow")
CHECKS = ["tape_checks", "graph_checks", "batch_norm_checks", "adasum_checks", "xla_checks"]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}


def program(name):
    return os.path.join(PROGRAMS, name)


class TrainingTest(unittest.TestCase):
    """Of one TensorFlow; see the end of this file."""

    NAME = None

    @classmethod
    def setUpClass(cls):
        cls.python = environments.python(cls.NAME)

    def job(self, np, nodes, *command):
        return harness.Job(np=np, nodes=nodes, command=[self.python, *command], env=QUIET)

    def checked(self, np, nodes):
        with self.job(np, nodes, program("training.py"), *CHECKS) as job:
            job.check_ok(500)
            for record in job.records():
                self.assertEqual(len(record["done"]), 45)
            self.check_served(os.path.join(job.dir, "served"))

    def check_served(self, directory):
        """What rank 0 has left is served by a process that cannot import maypole."""
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MAYPOLE_LIBRARY")}
        done = subprocess.run([self.python, "-I", program("serve.py"), directory], env=dict(env, **QUIET),
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        said = json.loads(done.stdout.splitlines()[-1])
        with open(os.path.join(directory, "prediction.json")) as f:
            wanted = json.load(f)
        self.assertFalse(said["maypole"])
        for served in (said["checkpoint"], said["graph"]):
            for (here,), (there,) in zip(served, wanted):
                self.assertAlmostEqual(here, there, 6)

    def test_two_ranks_on_two_nodes(self):
        self.checked(2, 2)

    def test_four_ranks_on_two_nodes(self):
        self.checked(4, 2)

    def test_a_script_of_tensorflow_1(self):
        with self.job(2, 1, program("v2_off.py")) as job:
            job.check_ok(300)
            for record in job.records():  # every second step applies two steps' gradients
                self.assertEqual(record["steps"], [[1.0, [1.0, 1.0, 1.0], 1], [-2.0, [0.0, 0.0, 1.0], 2],
                                                   [-2.0, [0.0, 0.0, 1.0], 3], [-5.0, [-1.0, -1.0, 1.0], 4]])

    def data_service(self, *options):
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            config = os.path.join(directory, "config")
            compute = [self.python, "-m", "maypole.tensorflow.data.compute_worker", config, "--timeout", "200",
                       "--address", "127.0.0.1", *options]
            with harness.Job(np=2, command=compute, env=QUIET) as computing, self.job(
                    2, 1, program("data_service.py"), config) as training:
                training.check_ok(400)
                computing.check_ok(60)
                records = training.records()
            self.assertFalse(os.path.exists(config))
        elements = [3 * i for i in range(400)]
        for record in records:
            if record["each"] is not None:
                self.assertEqual(sorted(record["each"]), elements)
        if records[0]["shared"] is not None:
            self.assertEqual(sorted(records[0]["shared"] + records[1]["shared"]), elements)  # each once
        return records

    def test_data_service(self):
        records = self.data_service()
        self.assertIsNotNone(records[0]["shared"])
        self.assertIsNotNone(records[0]["each"])

    def test_data_service_with_a_dispatcher_in_the_training_job(self):
        self.assertIsNotNone(self.data_service("--dispatcher-side", "training")[0]["shared"])

    def test_data_service_with_a_dispatcher_in_each_training_rank(self):
        records = self.data_service("--dispatcher-side", "training", "--dispatchers", "2")
        self.assertIsNotNone(records[0]["each"])

    def run_elastic(self, directory, kind, passes, ranks):
        argv = [os.path.join(harness.ROOT, harness.PROGRAMS[0]), "-np", str(ranks), "--min-np", "1",
                "--blacklist-cooldown-range", "1", "1", self.python, program("elastic.py"), directory, str(ranks),
                kind, str(passes)]
        return subprocess.run(argv, env=harness.environment(QUIET), capture_output=True, text=True, timeout=500)

    def elastic_ends(self, kind, passes=1, ranks=2):
        """What the ranks say at the end, and maypolerun's stderr."""
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            done = self.run_elastic(directory, kind, passes, ranks)
            self.assertEqual(done.returncode, 0, done.stderr[-6000:])
            self.assertIn("was killed by signal 9 (Killed); the job goes on", done.stderr)
            ends = []
            for path in sorted(glob.glob(directory + "/end.*.json")):
                with open(path) as f:
                    ends.append(json.load(f))
        self.assertEqual(len(ends), ranks)
        for end in ends:
            self.assertEqual(end["weights"], ends[0]["weights"])
            self.assertLess(end["apart"], 1e-9)
            self.assertGreater(end["moved"], 0.01)
        return ends, done.stderr

    def elastic(self, *args):
        ends, _ = self.elastic_ends(*args)
        # One has made all steps, and again those that the others' last commit has not; one came later.
        steps = sorted(end["steps"] for end in ends)
        self.assertGreaterEqual(steps[-1], 32)
        self.assertLess(steps[0], 25)

    def test_elastic_keras(self):
        self.elastic("keras")

    def test_elastic_rates_that_the_state_does_not_have(self):
        _, stderr = self.elastic_ends("rates")
        self.assertRegex(stderr, "ValueError: DistributedGradientTape: the ranks begin with different weights of parameter "
                                 ".* on rank 0 and .* on rank 1.*in an elastic job make all .* part of the state")

    def test_elastic_graph(self):
        self.elastic("graph")

    def test_elastic_passes_of_keras(self):
        self.elastic("keras", 3)

    def test_elastic_passes_of_a_version_1_optimizer(self):
        self.elastic("legacy", 3)

    def test_elastic_passes_in_a_graph(self):
        self.elastic("graph", 3)

    def test_elastic_graphs_of_different_variables(self):
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            done = self.run_elastic(directory, "apart", 1, 2)
            self.assertEqual(done.returncode, 1, done.stderr[-6000:])
            self.assertEqual(os.listdir(directory), [])
        for rank in range(2):
            self.assertRegex(done.stderr, rf"\[{rank}\]<stderr>:ValueError: DistributedMomentumOptimizer: the gradient of "
                                          r"bias float64\(1,\) is dense on rank 0 and None on rank 1. In an elastic job")


class TracedAloneTest(unittest.TestCase):
    """Nobody can know whether the others will trace the function, too: the rank itself and the stall report say it."""

    def test_a_rank_that_traces_a_function_alone(self):
        command = [environments.python("tensorflow-2.18"), program("traced_alone.py")]
        with harness.Job(np=2, command=command, env=dict(QUIET, MAYPOLE_STALL_SHUTDOWN_TIME_SECONDS="8")) as job:
            self.assertEqual(job.wait(300), 3)
            out, err = job.stdout(), job.stderr()
        self.assertRegex(err, r"\[0\]<stderr>:maypole: rank 0 traces the function 'train_step' and has waited 5 s for the "
                              r"other ranks to trace it, too \(DistributedGradientTape.layouts: .* of 2 it lacks none\)")
        crossed = (r"rank 0 \(.*\) has not submitted: allreduce 'DistributedGradientTape.second_1_.* \(rank 1 has waited "
                   r"[5-9]\..* s\).*; rank 1 \(.*\) has not submitted: allgather 'DistributedGradientTape.layouts'")
        self.assertRegex(err, r"event=late_ranks .*" + crossed)
        for rank in range(2):
            self.assertRegex(out, r"\[%d\]<stdout>:ended: .* the stall shutdown time \(8 s\) has passed: %s" %
                             (rank, crossed))


for _name in environments.names("tensorflow"):
    _class = "Training" + _name.partition("-")[2].replace(".", "_") + "Test"
    globals()[_class] = type(_class, (TrainingTest,), {"NAME": _name})
del TrainingTest, _name, _class


if __name__ == "__main__":
    unittest.main()
