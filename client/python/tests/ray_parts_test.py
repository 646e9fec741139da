"""maypole.ray without Ray: numbering, environment, parameters, discovery, elastic jobs, errors."""

import pickle
import os
import sys
import types
import unittest
from unittest import mock

import maypole.ray as maypole_ray
from maypole.common.exceptions import HorovodInternalError
from maypole.common import basics, driver
from maypole.ray import cluster, discovery, errors, gathering, placement, worker
from maypole.ray.static_adapter import StaticAdapter
from maypole.runner import RankError


class PlacementTest(unittest.TestCase):
    def test_ranks_of_a_node_follow_each_other(self):
        found = driver.number(dict(enumerate(["b", "a", "b", "a", "c"])))
        self.assertEqual(list(found), [0, 2, 1, 3, 4])
        self.assertEqual([tuple(place) for place in found.values()], [
            (0, 5, 0, 2, 0, 3), (1, 5, 1, 2, 0, 3), (2, 5, 0, 2, 1, 3), (3, 5, 1, 2, 1, 3), (4, 5, 0, 1, 2, 3)])

    def test_names_of_nodes(self):
        self.assertEqual(placement.node_name("h1", "0123456789", []), "h1")
        self.assertEqual(placement.node_name("h1", "0123456789", ["h1"]), "h1-01234567")
        long = placement.node_name("h" * 80, "0123456789", ["h" * 63])
        self.assertEqual((len(long), long[-9:]), (63, "-01234567"))
        self.assertEqual(placement.node_name('a b/"c', "0", []), "a-b--c")
        self.assertEqual(placement.node_name("", "0", []), "node")

    def test_the_environment_of_ranks(self):
        environ = {"MAYPOLE_CHECKSUMS": "1", "MAYPOLE_RANK": "7", "MAYPOLE_AGENT": "/other", "HOROVOD_SIZE": "9",
                   "HOROVOD_FUSION_THRESHOLD": "0", "HOME": "/home/u", "MAYPOLE_JOB": "other"}
        passed = driver.settings(environ)
        self.assertEqual(passed, {"MAYPOLE_CHECKSUMS": "1", "HOROVOD_FUSION_THRESHOLD": "0"})
        of_job = placement.job_variables(passed, {"LR": 0.1, "MAYPOLE_CHECKSUMS": 0}, 120, "t")
        self.assertRegex(of_job.pop("MAYPOLE_JOB"), "^ray-[0-9a-f]{8}$")
        self.assertEqual(of_job, {"MAYPOLE_CHECKSUMS": "0", "HOROVOD_FUSION_THRESHOLD": "0", "LR": "0.1",
                                  "MAYPOLE_START_TIMEOUT": "120", "MAYPOLE_TOKEN": "t"})
        given = placement.job_variables({}, {"MAYPOLE_JOB": "j", "MAYPOLE_TOKEN": "s", "HOROVOD_START_TIMEOUT": 9},
                                        120, "t")
        self.assertEqual(given, {"MAYPOLE_JOB": "j", "MAYPOLE_TOKEN": "s", "HOROVOD_START_TIMEOUT": "9"})
        own = {**driver.variables_on("n1", "h1"), **driver.Place(3, 4, 1, 2, 1, 2).variables()}
        for name, value in (("RANK", "3"), ("SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_SIZE", "2"), ("CROSS_RANK", "1"),
                            ("CROSS_SIZE", "2")):
            self.assertEqual((own.pop("MAYPOLE_" + name), own.pop("HOROVOD_" + name)), (value, value))
        self.assertEqual(own, {"MAYPOLE_NODE": "n1", "HOROVOD_HOSTNAME": "h1"})
        self.assertEqual(driver.elastic_variables(2, None), {
            "MAYPOLE_ELASTIC": "1", "HOROVOD_ELASTIC": "1", "MAYPOLE_MIN_SIZE": "2"})
        self.assertEqual(driver.elastic_variables(2, 3)["MAYPOLE_MAX_SIZE"], "3")

    def test_device_local_rank_is_a_ranks_own(self):
        self.assertEqual(placement.visible_devices([[3], [1]]), "3,1")
        self.assertEqual(placement.visible_devices([[0, 1], ["2", "3"]]), "0,2,1,3")
        for none in ([], [[], []], [[0], [0]]):
            self.assertIsNone(placement.visible_devices(none))

    def test_where_the_coordinator_listens(self):
        self.assertEqual(placement.listen_address(["10.0.0.1"], "10.0.0.1"), "127.0.0.1:0")
        self.assertEqual(placement.listen_address(["10.0.0.1", "10.0.0.2"], "10.0.0.1"), "10.0.0.1:0")
        self.assertEqual(placement.listen_address(["10.0.0.2"], "10.0.0.1"), "10.0.0.1:0")
        self.assertEqual(placement.listen_address(["fd00::1", "fd00::2"], "fd00::1"), "[fd00::1]:0")


class ParametersTest(unittest.TestCase):
    def test_contradictions(self):
        settings = maypole_ray.RayExecutor.create_settings()
        for parameters, text in (
                ({}, "how many ranks"), ({"num_workers": 2, "num_hosts": 1}, "num_workers=2 and num_hosts=1: give one"),
                ({"num_workers": 2, "min_workers": 1}, "give one of them"), ({"max_workers": 2}, "needs min_workers"),
                ({"num_workers": 0}, "at least 1"), ({"min_workers": 3, "max_workers": 2}, "less than min_workers"),
                ({"num_workers": 1, "gpus_per_worker": 1}, "use_gpu=True"),
                ({"num_workers": 1, "gpus_per_worker": 0, "use_gpu": True}, "gpus_per_worker=0")):
            with self.assertRaisesRegex(ValueError, text):
                maypole_ray.RayExecutor(settings, **parameters)

    def test_without_ray_the_error_says_what_to_install(self):
        executor = maypole_ray.RayExecutor(maypole_ray.RayExecutor.create_settings(), num_workers=2)
        with mock.patch.dict(sys.modules, {"ray": None}), self.assertRaisesRegex(ImportError, "pip install ray"):
            executor.start()

    def test_what_needs_a_start(self):
        executor = maypole_ray.RayExecutor(maypole_ray.RayExecutor.create_settings(), min_workers=2)
        executor.shutdown()
        with self.assertRaisesRegex(RuntimeError, r"run\(\): this RayExecutor is not started"):
            executor.run(print)

    def test_horovods_variable_of_the_elastic_timeout(self):
        settings = maypole_ray.RayExecutor.create_settings()
        with mock.patch.dict(os.environ, {"HOROVOD_ELASTIC_TIMEOUT": "50"}):
            for given, timeout in ((None, 50), (7, 7)):
                more = {} if given is None else {"elastic_timeout": given}
                executor = maypole_ray.RayExecutor(settings, min_workers=2, **more)
                self.assertEqual(executor._make[1]["elastic_timeout"], timeout)  # pylint: disable=protected-access

    def test_older_names_of_parameters(self):
        with self.assertWarnsRegex(DeprecationWarning, "min_num_proc"):
            settings = maypole_ray.ElasticRayExecutor.create_settings(min_np=2, max_num_proc=4, verbose=2)
        self.assertEqual((settings.min_num_proc, settings.max_num_proc, settings.verbose), (2, 4, 2))


class FakeActors:
    """Ray, as far as StaticAdapter needs it to make actors: only the first `room` of them start."""

    def __init__(self, room):
        self.room, self.made, self.waited = room, 0, []

    def remote(self, _):
        return self

    def options(self, **_):
        def make():
            self.made += 1
            return types.SimpleNamespace(where=types.SimpleNamespace(remote=lambda _, number=self.made: number))
        return types.SimpleNamespace(remote=make)

    def wait(self, refs, num_returns, timeout):
        self.waited.append((num_returns, timeout))
        return [ref for ref in refs if ref <= self.room], [ref for ref in refs if ref > self.room]

    def get(self, refs):
        assert max(refs) <= self.room, "this would wait for ever"
        raise StopIteration  # the test ends here


class StartTest(unittest.TestCase):
    def start(self, room, group):
        ray = FakeActors(room)
        adapter = StaticAdapter(maypole_ray.MiniSettings(placement_group_timeout_s=7), 3, None, 1, {"CPU": 2}, True)
        with mock.patch.object(cluster, "get_ray", lambda: ray), \
                mock.patch.object(cluster, "current_group", lambda: group), \
                mock.patch.object(cluster, "make_group", lambda *_: "made"), \
                mock.patch.object(cluster, "in_bundle", lambda *_: None):
            try:
                adapter.start(None, None, None, None)
            finally:
                self.assertEqual(ray.waited, [(3, 7)])

    def test_a_placement_group_without_room(self):
        with self.assertRaisesRegex(TimeoutError, r"2 of 3 ranks, each with {'CPU': 2}, have started within 7 s .*in the "
                                                  "placement group that this process runs in: make that larger"):
            self.start(2, "a group")
        with self.assertRaisesRegex(TimeoutError, r"\(placement_group_timeout_s\)$"):
            self.start(0, None)
        with self.assertRaises(StopIteration):
            self.start(3, "a group")


class DiscoveryTest(unittest.TestCase):
    NODES = [cluster.RayNode("n0", "h", "10.0.0.1", {"CPU": 5.0}),
             cluster.RayNode("n1", "h", "10.0.0.2", {"CPU": 4.0, "GPU": 1.0}),
             cluster.RayNode("n2", "i", "10.0.0.2", {"CPU": 0.5})]

    def test_slots(self):
        with mock.patch.object(cluster, "living_nodes", lambda: self.NODES):
            self.assertEqual(discovery.RayHostDiscovery(cpus_per_worker=2).find_available_hosts_and_slots(),
                             {"10.0.0.1": 2, "n1": 2})
            self.assertEqual(discovery.RayHostDiscovery(use_gpu=True).find_available_hosts_and_slots(), {"n1": 1})

    def test_hosts_by_address_name_and_id(self):
        self.assertEqual(discovery.nodes_of({"10.0.0.2": 2, "h": 1, "n2": 3, "gone": 1}, self.NODES),
                         {"n1": 2, "n0": 1, "n2": 3})

    def test_the_random_one_keeps_its_limits(self):
        with mock.patch.object(cluster, "living_nodes", lambda: self.NODES):
            shaken = discovery.TestDiscovery(1, 2, 0, verbose=False)
            sizes = {len(shaken.find_available_hosts_and_slots()) for _ in range(100)}
        self.assertEqual(sizes, {1, 2})

    def test_no_discovery(self):
        with self.assertRaisesRegex(ValueError, "find_available_hosts_and_slots"):
            discovery.check(None)


class WorkerTest(unittest.TestCase):
    def end(self, error, finished=False):
        def function(_):
            raise error
        with mock.patch.object(worker, "_in_a_job", lambda: True), \
                mock.patch.object(basics, "has_finished", lambda: finished), mock.patch("signal.signal"):
            return worker.BaseHorovodWorker().execute_elastic(function, {}, (), None)

    def test_who_was_asked_to_leave_has_not_finished(self):
        self.assertEqual(self.end(SystemExit(143))[2:], (True, True, False))
        self.assertEqual(self.end(SystemExit(0), True)[2:], (True, False, True))
        with self.assertRaisesRegex(RuntimeError, "sys.exit"):
            self.end(SystemExit(3))

    def test_an_error_says_whether_the_training_was_over(self):
        for finished in (False, True):
            with self.assertRaises(KeyError) as raised:
                self.end(KeyError("x"), finished)
            error = pickle.loads(pickle.dumps(raised.exception))
            self.assertEqual(worker.failed_after_its_training(error), finished)
            self.assertEqual(worker.failed_after_its_training(types.SimpleNamespace(cause=error)), finished)


class FakeQueue(list):
    """Ray's Queue, as far as Callbacks needs it."""

    def qsize(self):
        return len(self)

    def empty(self):
        return not self

    def get(self):
        return self.pop(0)

    def get_nowait_batch(self, count):
        taken, self[:count] = self[:count], []
        return taken


class CallbacksTest(unittest.TestCase):
    def test_ranks_that_say_more_than_the_driver_can_hear(self):
        heard = []

        def hear(value):
            heard.append(value)
            if len(heard) > 100:
                raise AssertionError("nothing else would ever be done")
            callbacks.queue += [value + 2]

        callbacks = gathering.Callbacks(None)
        callbacks.call_all()
        callbacks.queue, callbacks._functions = FakeQueue([0, 1]), [hear]
        callbacks.call_all()
        self.assertEqual(heard, [0, 1])
        callbacks.call_all()
        self.assertEqual(heard, [0, 1, 2, 3])


class FakeRayErrors:
    """ray.exceptions, as far as errors.py looks at them."""

    class RayError(Exception):
        pass

    class RayActorError(RayError):
        pass

    class ActorDiedError(RayActorError):
        pass

    class RayTaskError(RayError):
        def __init__(self, cause):
            super().__init__(f"traceback of {cause!r}")
            self.cause = cause


class ErrorsTest(unittest.TestCase):
    def setUp(self):
        fake = mock.patch.dict(sys.modules, {"ray": types.SimpleNamespace(exceptions=FakeRayErrors)})
        fake.start()
        self.addCleanup(fake.stop)

    def ranks(self, *failures):
        return errors.rank_error([(errors.Rank(rank, "n%d" % (rank // 2), 100 + rank), error)
                                  for rank, error in failures])

    def test_the_dead_one_comes_first(self):
        lost = FakeRayErrors.RayTaskError(HorovodInternalError("allreduce 'a': rank 2 was lost"))
        error = self.ranks((0, lost), (3, lost), (2, FakeRayErrors.ActorDiedError(
            "The actor died\n\tpid: 102\nIts worker process has died. Some common causes include: many")))
        self.assertEqual(str(error), "rank 2 (node n1, pid 102) died: Its worker process has died.\n"
                                     "ranks 0,3: HorovodInternalError: allreduce 'a': rank 2 was lost")
        self.assertIsInstance(error, RankError)
        self.assertIsInstance(error, FakeRayErrors.RayActorError)
        self.assertEqual((error.rank, error.traceback), (2, ""))

    def test_what_the_function_raises_comes_before_what_it_causes(self):
        error = self.ranks((0, FakeRayErrors.RayTaskError(HorovodInternalError("rank 1 has shut down"))),
                           (1, FakeRayErrors.RayTaskError(KeyError("x"))))
        self.assertEqual(str(error), "rank 1 (node n0, pid 101): KeyError: 'x'\n"
                                     "rank 0: HorovodInternalError: rank 1 has shut down")
        self.assertEqual((error.rank, error.traceback), (1, "traceback of KeyError('x')"))


if __name__ == "__main__":
    unittest.main()
