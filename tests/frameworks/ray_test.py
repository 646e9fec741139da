"""maypole.ray on real Ray clusters: two or three nodes on this machine, with loopback addresses of their own."""

import ast
import os
import re
import signal
import subprocess
import unittest

import environments
import harness
import ray_cluster

SHIM = os.path.join(harness.ROOT, "client/python/horovod_shim")


class StaticTest(unittest.TestCase):
    """One cluster for all of its tests: 3 + 2 CPUs."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = ray_cluster.Cluster(environments.python("ray-2.60"))
        cls.addClassCleanup(cls.cluster.__exit__)
        cls.cluster.add("127.0.0.2", 3)
        cls.cluster.add("127.0.0.3", 2)

    def tearDown(self):
        harness.wait_until(lambda: not self.cluster.leftovers(), 20, "the end of daemons and files")

    def check_places(self, found, local_sizes):
        places = [(local, of, node) for node, of in enumerate(local_sizes) for local in range(of)]
        size = sum(local_sizes)
        self.assertEqual([record["place"] for record in found],
                         [[rank, size, local, of, node, len(local_sizes)]
                          for rank, (local, of, node) in enumerate(places)])
        self.assertEqual([len({r["node"] for r in found if r["place"][4] == node}) for node in range(len(local_sizes))],
                         [1] * len(local_sizes))
        self.assertEqual(len({record["name"] for record in found}), len(local_sizes))

    def test_values(self):
        # Of another job, the driver's, is MAYPOLE_RANK.
        said = self.cluster.run("values", env={"MAYPOLE_CHECKSUMS": "1", "MAYPOLE_RANK": "9"})
        # PACK: the larger node is filled first.
        sizes = [3, 1] if said["where"][2]["place"][4] == 0 else [2, 2]
        self.check_places(said["where"], sizes)
        for record in said["where"]:
            self.assertEqual([record[name] for name in ("extra", "timeout", "checksums")], ["7", "120", "1"])
        self.assertEqual(said["sums"], [[10.0] * 4, [14.0] * 4])
        self.assertEqual(said["remote"], [True, [18.0] * 4])
        self.assertEqual(said["heard"], [{"every": rank} for rank in range(4)] + [{"from": 0}])
        self.assertEqual(said["single"], [None, 0])
        losses, weights = said["alone"]
        self.assertLess(losses[-1], losses[0])
        for got in said["trained"]:
            self.assertEqual(got[1], said["trained"][0][1])  # bit by bit
            for one, other in zip(got[0] + sum(got[1], []), losses + sum(weights, [])):
                self.assertAlmostEqual(one, other, places=5)

    def test_the_example(self):
        script = os.path.join(harness.ROOT, "examples/ray_pytorch.py")
        driver = self.cluster.start_program(script, "--hosts", "2", "--workers", "2", "--epochs", "3")
        driver.check_ok(150)
        # Ray may show ranks' lines after it.
        (line,) = [line for line in driver.output().splitlines() if line.startswith("[(")]
        results = ast.literal_eval(line)
        self.assertEqual([result[:2] for result in results], [(rank, 4) for rank in range(4)])
        self.assertEqual(len({result[2] for result in results}), 1)
        self.assertLess(results[0][2], 0.05)

    def test_spread(self):
        said = self.cluster.run("spread")
        self.check_places(said["where"], [2, 2])
        self.assertEqual(said["counted"], [[15, 16, 17, 18], [20, 21, 22, 23]])
        self.assertEqual(said["again"], [10.0] * 4)

    def test_in_a_placement_group(self):
        found, groups = self.cluster.run("in_a_group")["where"]
        self.assertEqual([record["place"][:2] for record in found], [[0, 2], [1, 2]])
        self.assertEqual(groups, 1)

    def test_a_killed_rank(self):
        driver = self.cluster.start("failing", "killed")
        said = driver.check_ok(150)
        first, *others = said["error"].splitlines()
        self.assertRegex(first, r"^rank 2 \(node \S+, pid \d+\) died: .*worker process has died")
        self.assertRegex("\n".join(others),
                         r"HorovodInternalError: allreduce 'fc2.weight': rank 2 \(.*pid \d+.*its connection closed")
        named = ",".join(re.findall(r"^ranks? ([\d,]+):", said["error"], re.M)).split(",")
        self.assertEqual(sorted(named), ["0", "1", "3"])
        self.assertEqual((said["rank"], said["kinds"]), (2, [True, False]))
        self.assertLess(said["seconds"], 5)

    def test_a_function_that_raises(self):
        said = self.cluster.run("failing", "raises")
        self.assertRegex(said["error"], r"^rank 2 \(node \S+, pid \d+\): ValueError: no data\n")
        self.assertIn("has shut down", said["error"])
        self.assertEqual((said["rank"], said["kinds"]), (2, [False, True]))
        self.assertLess(said["seconds"], 12)
        self.assertEqual(said["again"], [10.0] * 4)

    def test_a_killed_driver(self):
        driver = self.cluster.start("waiting")
        driver.await_said("ready", 150)
        programs = [os.path.basename(argv[0]) for argv in self.cluster.daemons().values() if "--executor" not in argv]
        self.assertEqual((programs.count("maypole-coordinator"), programs.count("maypole-worker")), (1, 2))
        os.kill(driver.process.pid, signal.SIGKILL)
        driver.process.wait()
        # tearDown waits for the end of the daemons.

    def test_what_cannot_be_started(self):
        said = self.cluster.run("refused")
        self.assertRegex(said["too many"], r"TimeoutError: Ray has not reserved 100 x \{'CPU': 1\} \(PACK\) within 1 s "
                                           r"\(placement_group_timeout_s\); free are 5 CPU, 0 GPU: ")
        self.assertRegex(said["no such interface"], r"RuntimeError: node \S+: \S+ has none of these network interfaces "
                                                    r"with an address: nosuch0 \(nics\)")
        self.assertRegex(said["no program"], r"RuntimeError: node \S+: maypole-coordinator could not be started: there "
                                             r"is no program maypole-coordinator in /nowhere \(MAYPOLE_BIN\)")
        self.assertIn("call start() first", said["not started"])

    def test_a_coordinator_that_runs(self):
        directory = self.cluster.dir
        secret = os.path.join(directory, "secret")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as f:
            f.write("a secret of this test\n")
        read, write = os.pipe()
        coordinator = subprocess.Popen(
            [os.path.join(harness.ROOT, harness.PROGRAMS[1]), "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0",
             "--secret_file=" + secret, "--announce_fd=%d" % write], pass_fds=[write], stderr=subprocess.DEVNULL)
        self.addCleanup(harness.kill_tree, coordinator)
        os.close(write)
        with open(read, encoding="ascii") as f:
            announced = dict(word.split("=") for word in f.readline().split())
        said = self.cluster.run("given_coordinator", env={"MAYPOLE_COORDINATOR": announced["listen"],
                                                          "MAYPOLE_SECRET_FILE": secret})
        self.assertEqual(said["sums"], [3.0, 3.0])
        self.assertEqual(said["daemons"], ["maypole-worker"])

    def test_horovods_names(self):
        env = self.cluster.environment()
        said = self.cluster.run("shim", env={"PYTHONPATH": env["PYTHONPATH"] + os.pathsep + SHIM})
        self.assertEqual(said["ranks"], [["0.28.1", 0], ["0.28.1", 1]])
        self.assertEqual(said["elastic"], [["0.28.1", 0], ["0.28.1", 1]])


class ElasticTest(unittest.TestCase):

    def setUp(self):
        self.cluster = ray_cluster.Cluster(environments.python("ray-2.60"))
        self.addCleanup(self.cluster.__exit__)
        self.cluster.add("127.0.0.2", 2)
        self.node = self.cluster.add("127.0.0.3", 1)
        self.stop = os.path.join(self.cluster.dir, "stop")

    def await_size(self, driver, size):
        def there():
            if driver.process.poll() is not None:
                raise AssertionError("the driver has ended: " + driver.errors()[-5000:])
            return driver.said().get("size") == size
        harness.wait_until(there, 150, "%d ranks" % size)

    def finish(self, driver):
        with open(self.stop, "w", encoding="ascii"):
            pass
        results = driver.check_ok(60)["results"]
        self.assertEqual([result["rank"] for result in results], list(range(len(results))))
        self.assertEqual(len({result["steps"] for result in results}), 1)
        harness.wait_until(lambda: not self.cluster.leftovers(), 20, "the end of daemons and files")
        return results

    def test_a_node_goes_and_another_one_comes(self):
        driver = self.cluster.start("elastic", self.stop, 2, 3)
        self.await_size(driver, 3)
        self.cluster.remove(self.node)
        self.await_size(driver, 2)
        self.cluster.add("127.0.0.4", 1)
        self.await_size(driver, 3)
        results = self.finish(driver)
        self.assertEqual([result["size"] for result in results], [3, 3, 3])
        self.assertEqual(len({result["node"] for result in results}), 2)

    def test_a_killed_rank_is_replaced(self):
        driver = self.cluster.start("elastic", self.stop, 2, 3)
        self.await_size(driver, 3)
        actors = [pid for pid, (_, argv) in harness.processes().items()
                  if "ray::BaseHorovodWorker.execute_elastic" in argv[0] and self.of_cluster(pid)]
        self.assertEqual(len(actors), 3)
        os.kill(actors[0], signal.SIGKILL)
        self.await_size(driver, 2)
        self.await_size(driver, 3)
        self.finish(driver)
        self.assertRegex(driver.errors(), r"maypole: process \d \(host \S+\) died: .* \(pid %d\); the job goes on, "
                                          r"and host \S+ gets a new process in 1 s" % actors[0])

    def of_cluster(self, pid):
        try:
            with open("/proc/%d/environ" % pid, "rb") as f:
                return self.cluster.runtime.encode() in f.read()
        except OSError:
            return False

    def test_a_discovery_that_takes_a_node_away(self):
        shrink = os.path.join(self.cluster.dir, "shrink")
        driver = self.cluster.start("shrinking", self.stop, shrink)
        self.await_size(driver, 3)
        with open(shrink, "w", encoding="ascii"):
            pass
        self.await_size(driver, 2)
        self.assertEqual(len(self.finish(driver)), 2)
        self.assertIn("is not listed any more: its processes leave at their next commit", driver.errors())
        self.assertNotIn("continuing from the last commit", driver.errors())

    def test_a_function_that_always_fails(self):
        said = self.cluster.run("hopeless")
        self.assertRegex(said["error"], r"failed: ValueError: no data \(pid \d+\); processes have failed 3 times on every host")
        self.assertEqual(said["cause"], "RayTaskError(ValueError)")


if __name__ == "__main__":
    unittest.main()
