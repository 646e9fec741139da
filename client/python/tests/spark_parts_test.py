"""The parts of maypole.spark that need no Spark: numbering, the division of rows, the channel, what a failure is."""

import io
import itertools
import os
import signal
import socket
import sys
import threading
import unittest
from unittest import mock

import numpy

from maypole.common import driver
from maypole.runner import messages
from maypole.runner.errors import RankError
from maypole.spark import channel, elastic, fixed, job, output, requirements, runner, tasks
from maypole.spark.common import dataset


class PlacesTest(unittest.TestCase):

    def test_host_by_host_in_the_order_of_their_first_tasks(self):
        numbers = driver.number({3: "b", 0: "b", 1: "a", 4: "a", 2: "c"})
        self.assertEqual({
            index: tuple(place) for index, place in numbers.items()
        }, {
            0: (0, 5, 0, 2, 0, 3),
            3: (1, 5, 1, 2, 0, 3),
            1: (2, 5, 0, 2, 1, 3),
            4: (3, 5, 1, 2, 1, 3),
            2: (4, 5, 0, 1, 2, 3)
        })

    def test_variables(self):
        found = {**driver.variables_on("h1", "h1"), **driver.Place(1, 4, 1, 2, 0, 2).variables()}
        self.assertEqual((found["MAYPOLE_RANK"], found["HOROVOD_LOCAL_SIZE"], found["HOROVOD_HOSTNAME"]),
                         ("1", "2", "h1"))
        self.assertNotIn("MAYPOLE_RANK", driver.elastic_variables(1, 2))

    def test_settings_are_forwarded_and_places_are_not(self):
        self.assertEqual(
            driver.settings({
                "MAYPOLE_RANK": "1",
                "MAYPOLE_TOKEN": "x",
                "MAYPOLE_LOG_LEVEL": "info",
                "HOME": "/",
                "HOROVOD_FUSION_THRESHOLD": "0"
            }, job._OWN), {
                "MAYPOLE_LOG_LEVEL": "info",
                "HOROVOD_FUSION_THRESHOLD": "0"
            })


class DivisionTest(unittest.TestCase):

    def test_every_row_has_one_rank_and_ranks_have_equal_shares(self):
        random = numpy.random.default_rng(1)
        for size in (1, 2, 3, 7):
            groups = [dataset.RowGroup(f"f{i}", 0, int(rows)) for i, rows in enumerate(random.integers(1, 20, 9))]
            parts = dataset.divide(groups, size)
            rows = [
                [(piece.group.path, row) for piece in part for row in range(piece.begin, piece.end)] for part in parts
            ]
            everything = [(group.path, row) for group in groups for row in range(group.rows)]
            self.assertEqual(list(itertools.chain(*rows)), everything)
            self.assertLessEqual(max(map(len, rows)) - min(map(len, rows)), 1)

    def reader(self, begin, end, **more):
        group = dataset.RowGroup("f", 0, 100)
        reader = dataset.Reader(None, [dataset.Piece(group, at, min(at + 4, end)) for at in range(begin, end, 4)],
                                ["x"], **more)
        reader._read = lambda piece: {"x": numpy.arange(piece.begin, piece.end)}
        return reader

    def test_ranks_make_equally_many_steps(self):
        # 33 rows of two ranks, in batches of 16: 17 and 16 rows.
        count = dataset.steps(33, 2, 16)
        first = [batch["x"].tolist() for batch in self.reader(0, 17, padded_rows=17).batches(16, count)]
        second = [batch["x"].tolist() for batch in self.reader(17, 33, padded_rows=17).batches(16, count)]
        self.assertEqual(first, [list(range(16)), [16]])
        self.assertEqual(second, [list(range(17, 33)), [17]])

    def test_more_steps_begin_again(self):
        batches = [batch["x"].tolist() for batch in self.reader(0, 5).batches(2, 5)]
        self.assertEqual(batches, [[0, 1], [2, 3], [4], [0, 1], [2, 3]])

    def test_shuffled_rows_are_all_there_in_another_order_for_each_seed(self):

        def epoch(seed, **more):
            return numpy.concatenate([batch["x"] for batch in self.reader(0, 30).batches(7, 5, seed, **more)]).tolist()

        self.assertEqual(sorted(epoch(1)), list(range(30)))
        self.assertNotEqual(epoch(1), epoch(2))
        self.assertEqual(epoch(1), epoch(1))
        self.assertEqual(sorted(epoch(1, shuffle_rows=8)), list(range(30)))


class ChannelTest(unittest.TestCase):

    def pair(self, key_of_task=b"k"):
        """A driver's and a task's channel; the task's may have the wrong key."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        result = []
        thread = threading.Thread(
            target=lambda: result.append(channel.connect([("127.0.0.1", 1), listener.getsockname()], key_of_task, 10)))
        thread.start()
        driver = channel.Channel(listener.accept()[0], b"k", is_driver=True)
        thread.join()
        (task, host), = result
        self.assertEqual(host, "127.0.0.1")
        self.addCleanup(driver.close)
        self.addCleanup(task.close)
        return driver, task

    def receive(self, link, count):
        out = []
        while len(out) < count:
            out += link.receive()
        return out

    def test_messages_in_both_directions(self):
        driver, task = self.pair()
        task.send("hello", {"index": 1})
        task.send("output", b"x" * 3000000)
        self.assertFalse(driver.proved)
        self.assertEqual(self.receive(driver, 1)[0], ("hello", {"index": 1}))
        self.assertTrue(driver.proved)

        thread = threading.Thread(target=lambda: driver.send("run", {}))
        thread.start()
        self.assertEqual(self.receive(task, 1), [("run", {})])
        thread.join()

    def test_another_key_is_refused(self):
        driver, task = self.pair(b"other")
        task.send("hello", {})
        with self.assertRaises(channel.Refused):
            self.receive(driver, 1)

    def test_a_changed_or_repeated_frame_is_refused(self):
        # The task's next frame has number 1.
        for number, body in ((1, b"other"), (0, b"body.")):
            driver, task = self.pair()
            task.send("hello", {})
            self.receive(driver, 1)
            task._socket.sendall(channel._HEAD.pack(5) + channel._mac(task._keys[0], number, b"body.") + body)
            with self.assertRaises(channel.Refused):
                self.receive(driver, 1)

    def test_nobody_listens(self):
        with self.assertRaisesRegex(ConnectionError, r"cannot reach the driver.*127.0.0.1:1: "):
            channel.connect([("127.0.0.1", 1)], b"k", 1)


class FailureTest(unittest.TestCase):

    def test_a_killed_rank_is_the_cause_of_others_errors(self):
        consequence = {"error": "maypole.common.exceptions.HorovodInternalError: allreduce 'x': rank 1 died"}
        own = {"error": "KeyError: 'x'"}
        weights = [fixed.weight(-9, None), fixed.weight(1, own), fixed.weight(3, None), fixed.weight(1, consequence)]
        self.assertEqual(weights, [2, 1, 1, 0])

    def test_how_it_ended(self):
        self.assertEqual(job.how_it_ended(-9, ""), "was killed by signal 9 (Killed)")
        self.assertEqual(job.how_it_ended(3, ""), "exited with status 3")
        self.assertEqual(job.how_it_ended(None, "could not be started"), "could not be started")

    def test_reasons_of_spark(self):
        text = ("Job aborted due to stage failure: x\n"
                "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat y")
        self.assertEqual(tasks.reason(RuntimeError(text)), "Python worker exited unexpectedly (crashed)")
        self.assertRegex(tasks.reason(RuntimeError("x\nModuleNotFoundError: No module named 'maypole'")),
                         "install Maypole")

    def test_without_pyspark(self):
        with mock.patch.dict(sys.modules, {"pyspark": None}):
            with self.assertRaisesRegex(ImportError, r"needs pyspark: pip install 'maypole\[spark\]'"):
                runner.run(print)

    def test_without_a_context(self):
        pyspark = mock.Mock()
        pyspark.SparkContext._active_spark_context = None
        with mock.patch.dict(sys.modules, {"pyspark": pyspark}):
            with self.assertRaisesRegex(RuntimeError, "no active SparkContext"):
                requirements.active_context()

    def test_parameters(self):
        context = mock.Mock(defaultParallelism=4)
        with mock.patch.object(requirements, "active_context", return_value=context):
            for what, error in ((dict(num_proc=0), "num_proc=0"), (dict(start_timeout=0), "start_timeout=0"),
                                (dict(use_gloo=True, use_mpi=True), "exclude")):
                with self.assertRaisesRegex(ValueError, error):
                    runner.run(print, **what)
            for what in (dict(num_proc=2, min_num_proc=3), dict(num_proc=4,
                                                                max_num_proc=3), dict(min_np=1, min_num_proc=2)):
                with self.assertRaisesRegex(ValueError, "min_num_proc|max_num_proc"):
                    runner.run_elastic(print, **what)
            with self.assertRaisesRegex(TypeError, r"not: \['A'\]"):
                runner.run(print, env={"A": 1})
            with mock.patch.dict(os.environ, {"HOROVOD_SPARK_START_TIMEOUT": "x"}):
                with self.assertRaisesRegex(ValueError, "HOROVOD_SPARK_START_TIMEOUT='x'"):
                    runner.run(print)
            with mock.patch.dict(os.environ, {"HOROVOD_ELASTIC_TIMEOUT": "y"}):
                with self.assertRaisesRegex(ValueError, "HOROVOD_ELASTIC_TIMEOUT='y'"):
                    runner.run_elastic(print)


class OutputTest(unittest.TestCase):

    def test_whole_lines_with_numbers(self):
        out, err = io.StringIO(), io.StringIO()
        lines = output.Output(out, err, False)
        lines.write(1, "stdout", "a\nü".encode()[:-1])
        lines.write(0, "stderr", b"e\n")
        lines.write(1, "stdout", "ü".encode()[-1:])
        lines.end(1)
        self.assertEqual((out.getvalue(), err.getvalue()), ("[1]<stdout>:a\n[1]<stdout>:ü\n", "[0]<stderr>:e\n"))

    def test_timestamps(self):
        out = io.StringIO()
        output.Output(out, out, True).write(0, "stdout", b"a\n")
        self.assertRegex(out.getvalue(), r"^\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:a\n$")


class FakeTask:

    def __init__(self, index):
        self.index, self.host, self.number, self.worker_pid = index, "h", None, 100 + index
        self.sent = []

    def send(self, *message):
        self.sent.append(message[0])


class ElasticTest(unittest.TestCase):
    """What ElasticJob makes of the policy's decisions, without Spark: events in, messages to the tasks out."""

    def job(self, size=2, **more):
        self.now = 0.0
        clock = mock.patch.object(elastic.time, "monotonic", lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)
        with mock.patch.object(elastic.Base, "__init__", lambda self, *_: None):
            found = elastic.ElasticJob(None, None, size, 1, size, more.get("reset_limit"), 100)
        found.settings = mock.Mock(env=None, verbose=0)
        found.rank_timeout, found.output, found.context = 100, mock.Mock(), mock.Mock()
        found.note = mock.Mock()
        found._submit = mock.Mock()
        for slot in found._slots:
            slot.spark_job = mock.Mock()
            found._on(tasks.Event("hello", FakeTask(slot.number)))
        self.assertEqual([slot.task.sent for slot in found._slots], [["run"]] * size)
        return found

    def end(self, found, slot, status, answer=b"", finished=False):
        found._on(tasks.Event("ended", found._slots[slot].task, (status, answer, "", finished)))

    def pass_time(self, found, seconds):
        self.now += seconds
        found._on_time(self.now)

    def answer(self, rank, value):
        from maypole.common import objects
        return messages.encode_answer(rank, 2, result=bytes(objects.dumps(value)))

    def test_a_failed_process_is_started_again_by_its_task(self):
        found = self.job()
        self.end(found, 1, -signal.SIGKILL)
        self.assertEqual(found.note.mock_calls, [mock.call(
            "process 1 (host h/task1) was killed by signal 9 (Killed); the job goes on, and host h/task1 gets a new "
            "process in 1 s")])
        self.pass_time(found, 2)
        self.assertEqual((found._slots[1].task.sent, found._slots[1].process), (["run", "run"], 2))

    def test_a_lost_task_gets_a_new_spark_job_when_its_own_has_ended(self):
        found = self.job()
        found._on(tasks.Event("lost", found._slots[0].task, ("x",)))
        self.pass_time(found, 2)
        found._submit.assert_not_called()  # Spark itself tries the task again
        found._slots[0].spark_job.runs.return_value = False
        found._on(tasks.Event("job", None, (0, "ExecutorLostFailure")))
        self.pass_time(found, 2)
        found._submit.assert_called_once_with(found._slots[0])
        found._on(tasks.Event("hello", FakeTask(0)))
        self.assertEqual((found._slots[0].task.sent, found._slots[0].process), (["run"], 2))
        found._on(tasks.Event("hello", FakeTask(0)))  # before the end of the connection was seen
        self.assertEqual((found._slots[0].task.sent, found._slots[0].process), ([], None))
        self.pass_time(found, 2)
        self.assertEqual((found._slots[0].task.sent, found._slots[0].process), (["run"], 3))

    def test_the_first_that_returns_ends_the_training(self):
        found = self.job()
        self.end(found, 0, 0, self.answer(1, "b"))
        self.assertEqual((found._policy.finishing(), found._policy.running()), (True, 1))
        self.pass_time(found, 6)
        self.assertEqual(found._slots[1].task.sent, ["run", "leave"])
        self.end(found, 1, 0, self.answer(0, "a"))
        self.assertEqual(found._policy.running(), 0)
        self.assertEqual(elastic.runner_job.results_of(found._answers), ["a", "b"])

    def test_a_failure_after_the_training_is_the_jobs(self):
        found = self.job()
        with self.assertRaisesRegex(RankError, r"^process 1 \(host h\) exited with status 3 after its training$"):
            self.end(found, 1, 3, finished=True)

    def test_a_failure_when_others_have_finished_is_the_jobs(self):
        found = self.job()
        self.end(found, 0, 0, self.answer(1, "b"))
        with self.assertRaisesRegex(RankError, r"^process 1 \(host h\) was killed by signal 9 \(Killed\)$"):
            self.end(found, 1, -signal.SIGKILL)

    def test_a_task_that_is_lost_when_others_have_finished_is_a_failure(self):
        found = self.job()
        self.end(found, 0, 0, self.answer(1, "b"))
        with self.assertRaisesRegex(RankError, "the Spark task on h was lost: .* closed; its processes had not finished"):
            found._on(tasks.Event("lost", found._slots[1].task, ("x",)))

    def test_reset_limit(self):
        found = self.job(reset_limit=1)
        self.end(found, 1, -signal.SIGKILL)
        self.pass_time(found, 2)
        with self.assertRaisesRegex(RuntimeError, "was killed by signal 9 .* change 2 of .*, and reset_limit is 1"):
            self.end(found, 1, -signal.SIGKILL)

    def test_a_program_that_always_fails(self):
        found = self.job(1)
        with self.assertRaisesRegex(RankError, "process 2 .* exited with status 1; processes have failed 3 times on every"):
            for _ in range(3):
                self.end(found, 0, 1)
                self.pass_time(found, 15)

    def test_too_few_processes_for_too_long(self):
        found = self.job(1)
        found._on(tasks.Event("lost", found._slots[0].task, ("x",)))
        self.pass_time(found, 99)
        with mock.patch.object(elastic.slots, "describe", lambda _: "no slots"), \
                self.assertRaisesRegex(TimeoutError, "only 0 of at least 1 processes could run for 100 s "
                                                     r"\(elastic_timeout\); the cluster has no slots"):
            self.pass_time(found, 2)


if __name__ == "__main__":
    unittest.main()
