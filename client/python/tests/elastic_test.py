"""run(), reset() and commits of maypole.common.elastic, over a fake library."""

import collections
import os
import signal
import sys
import threading
import unittest
from unittest import mock

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
# pylint: disable=wrong-import-position
import maypole.torch as hvd
from maypole.common import basics, elastic, exceptions, trainings


def error_of(status):
    return exceptions.from_status(status, "rank 1 (pid 7) died")


class Recorded(elastic.State):
    """A state that notes what is done with it."""

    def __init__(self):
        super().__init__(hvd.broadcast_object, hvd.rank)
        self.events = []

    def save(self):
        self.events.append("save")

    def restore(self):
        self.events.append("restore")

    def sync(self):
        self.events.append("sync")

    def reset(self):
        self.events.append("reset")


class ElasticTest(unittest.TestCase):

    def setUp(self):
        self.use(2)
        self.make_elastic(True)
        self.state = Recorded()
        # Most tests have one of two ranks.
        self.share_numbers = elastic._share_numbers
        for patch in (mock.patch.object(elastic, "_share_numbers"),
                      mock.patch.object(elastic, "_trainings", trainings.Trainings()),
                      mock.patch.object(trainings.Trainings, "meet", return_value=None)):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(setattr, elastic._departure, "requested", False)

    def use(self, size):
        self.fake = fake_library.FakeLibrary(size)
        _native.use(self.fake)

    def make_elastic(self, yes):
        patch = mock.patch.dict(os.environ,
                                {"MAYPOLE_ELASTIC": "1" if yes else "0"})
        patch.start()
        self.addCleanup(patch.stop)

    def run_raising(self, *errors):
        """Runs a function that raises these, one in each call, then returns its
        arguments."""
        left = list(errors)

        def train(state, *args, **kwargs):
            state.events.append("train")
            if left:
                raise left.pop(0)
            return args, kwargs

        run = elastic.run_fn(train, lambda: self.state.events.append("epoch"))
        self.assertEqual(run.__name__, "train")
        return run(self.state, 1, b=2)

    def test_what_is_done_after_each_interruption(self):
        self.state.register_reset_callbacks(
            [lambda: self.state.events.append("callback")])
        result = self.run_raising(error_of(_native.ABORTED),
                                  hvd.HostsUpdatedInterrupt(skip_sync=True))
        self.assertEqual(result, ((1,), {"b": 2}))
        again = ["epoch", "reset", "callback", "sync", "train"]
        self.assertEqual(
            self.state.events,
            ["sync", "train", "restore"] + again + again)

    def test_optimizers_of_a_new_process_have_the_numbers_of_the_others(self):
        counts = [collections.Counter({("parameter", 0, "weight"): 3, "join": 1}),
                  collections.Counter({("parameter", 0, "weight"): 1, ("parameter", 0, "bias"): 2})]

        def rank(r):
            with mock.patch.object(elastic, "_counts", lambda: counts[r]):
                self.share_numbers()

        fake_library.run_ranks(self.fake, rank)
        shared = {("parameter", 0, "weight"): 3, ("parameter", 0, "bias"): 2}
        self.assertEqual(counts, [{**shared, "join": 1}, shared])

    def test_a_death_in_a_reset_callback_or_sync_starts_over(self):
        raised = []

        def callback():
            if len(raised) < 2:
                raised.append(1)
                raise error_of(_native.ABORTED)

        self.state.register_reset_callbacks([callback])
        self.run_raising(error_of(_native.ABORTED))
        self.assertEqual(self.state.events, ["sync", "train"] +
                         ["restore", "epoch", "reset"] * 3 + ["sync", "train"])

    def test_who_did_not_get_the_state_in_an_epoch_abandons_it(self):
        left = []
        leave = self.fake.shutdown
        self.fake.abandon_epoch = lambda: (left.append("abandoned"), leave())
        self.fake.leave_epoch = lambda: (left.append("to return"), leave())
        fails = [True, True, False, False, True]

        def sync():
            if fails and fails.pop(0):
                raise error_of(_native.ABORTED)

        self.state.sync = sync
        calls = []

        def train(_):
            calls.append(list(left))
            if len(calls) == 1:
                raise hvd.HostsUpdatedInterrupt()
            if len(calls) == 2:
                raise error_of(_native.ABORTED)

        elastic.run_fn(train, elastic.reset)(self.state)
        # A no-op follows each epoch that is abandoned. The last one that fails
        # is that of a rank which has older state.
        self.assertEqual(left, ["abandoned", "to return"] * 2 + ["to return"] * 2 +
                         ["abandoned", "to return"])
        self.assertEqual(calls[0], left[:4])

    def test_errors_that_would_come_again_are_raised(self):
        for error in (error_of(_native.FAILED_PRECONDITION), KeyError("x"),
                      error_of(_native.INVALID_ARGUMENT)):
            with self.assertRaises(type(error)) as raised:
                self.run_raising(error)
            self.assertIs(raised.exception, error)
        self.assertNotIn("epoch", self.state.events)

    def test_a_failed_value_of_an_epoch_that_is_over_is_no_new_loss(self):
        """It would recur in each restart: a script has kept the result of a step that had failed."""
        calls = []

        def train(_):
            calls.append(1)
            raise OSError("what the framework raises")

        def convert(_):
            error = error_of(_native.ABORTED)
            error.epoch = epoch
            return error

        epoch = basics.joins() - 1
        with self.assertRaisesRegex(RuntimeError, "was used in epoch .*pid 7.*do not keep results") as raised:
            elastic.run_converting(train, convert)(self.state)
        self.assertIsInstance(raised.exception.__cause__, OSError)
        self.assertEqual(len(calls), 1)
        self.assertNotIn("restore", self.state.events)

    def test_without_elastic_ranks_a_lost_one_is_an_error(self):
        self.make_elastic(False)
        with self.assertRaisesRegex(hvd.HorovodInternalError, "pid 7"):
            self.run_raising(error_of(_native.ABORTED))
        self.assertEqual(self.state.events, ["sync", "train"])
        self.state.events.clear()
        # What the program raises itself is for the loop.
        self.run_raising(hvd.HorovodInternalError("mine"))
        self.assertIn("epoch", self.state.events)

    def commit_on_both(self):
        """Commits on two ranks; returns whether each was interrupted."""

        def rank(_):
            state = Recorded()
            if self.fake.rank() in self.said:
                state.on_hosts_updated(1.0, 0)
            try:
                state.commit()
                return False
            except hvd.HostsUpdatedInterrupt:
                return True
            finally:
                self.assertEqual(state.events, ["save"])

        return fake_library.run_ranks(self.fake, rank)

    def test_all_ranks_are_interrupted_at_the_same_commit(self):
        self.said = ()
        self.assertEqual(self.commit_on_both(), [False, False])
        # One operation on each rank.
        self.assertEqual(len(self.fake.submitted), 2)
        self.assertEqual(len(set(name for _, name in self.fake.submitted)), 1)
        self.assertEqual(self.fake.pending(), 0)
        self.fake.change_wanted_by = {1: 2}
        self.assertEqual(self.commit_on_both(), [True, True])
        self.fake.change_wanted_by = {}
        self.said = (0,)
        self.assertEqual(self.commit_on_both(), [True, True])
        self.said = ()
        elastic.request_departure()
        self.assertEqual(self.commit_on_both(), [True, True])

    def test_a_commit_saves_before_the_ranks_agree(self):
        """A rank may go on from it, and another one hear of a death instead: both must have saved it."""
        with mock.patch.object(elastic, "_highest", side_effect=error_of(_native.ABORTED)):
            with self.assertRaisesRegex(hvd.HorovodInternalError, "pid 7"):
                self.state.commit()
        self.assertEqual(self.state.events, ["save"])

    def test_a_commit_in_an_epoch_that_is_over_saves_nothing(self):
        self.addCleanup(exceptions.begin_epoch, exceptions.current_epoch(), False)
        exceptions.begin_epoch(70, True)
        exceptions.of_operation(_native.ABORTED, "rank 1 died", 70)
        with self.assertRaisesRegex(hvd.HorovodInternalError, "rank 1 died"):
            self.state.commit()
        self.assertEqual(self.state.events, [])

    def test_who_catches_a_death_and_returns_has_not_trained_to_the_end(self):
        self.addCleanup(exceptions.begin_epoch, exceptions.current_epoch(), False)
        exceptions.begin_epoch(70, True)
        deaths = [True]

        def train(_):
            self.state.events.append("train")
            if deaths:
                deaths.pop()
                exceptions.of_operation(_native.ABORTED, "rank 1 died", 70)
                return "early"
            return "whole"

        def start_epoch():
            self.state.events.append("epoch")
            exceptions.begin_epoch(71, True)

        self.assertEqual(elastic.run_fn(train, start_epoch)(self.state), "whole")
        self.assertEqual(self.state.events, ["sync", "train", "restore", "epoch", "reset", "sync", "train"])
        self.assertEqual(self.fake.finished, [(0, False), (0, True)])
        # Without elastic ranks nobody replaces the dead one.
        self.make_elastic(False)
        exceptions.begin_epoch(72, False)
        with self.assertRaisesRegex(hvd.HorovodInternalError, "rank 1 died"):
            elastic.run_fn(lambda _: exceptions.of_operation(_native.ABORTED, "rank 1 died", 72), start_epoch)(self.state)

    def test_an_error_that_the_program_raises_because_of_a_death(self):
        """As `except RuntimeError as e: raise ValueError(...) from e`, or a handler that fails itself."""
        self.addCleanup(exceptions.begin_epoch, exceptions.current_epoch(), False)

        def raise_from(cause):
            raise ValueError("step 2 has failed") from cause

        def fail_while_handling(cause):
            try:
                raise OSError("no file") from cause
            except OSError:
                raise KeyError("x")  # pylint: disable=raise-missing-from

        def train(_, fail, ended, kind):
            calls.append(1)
            if len(calls) == 1:
                if ended:
                    exceptions.of_operation(_native.ABORTED, "rank 1 died", exceptions.current_epoch())
                fail(kind("Gloo: connection closed"))  # what DDP makes of it
            return "whole"

        for fail in (raise_from, fail_while_handling):
            for ended, kind in ((True, RuntimeError), (False, RuntimeError), (True, LookupError)):
                exceptions.begin_epoch(basics.joins(), True)
                calls = []
                with mock.patch.object(basics, "init", lambda: exceptions.begin_epoch(basics.joins(), True)):
                    if ended and kind is RuntimeError:
                        self.assertEqual(hvd.elastic.run(train)(self.state, fail, ended, kind), "whole")
                        continue
                    with self.assertRaises((ValueError, KeyError)):
                        hvd.elastic.run(train)(self.state, fail, ended, kind)

    def test_an_error_that_ends_the_epoch_is_kept_until_the_next_one(self):
        self.addCleanup(exceptions.begin_epoch, exceptions.current_epoch(), False)
        epoch = 70

        def kept(code, text="rank 1 died", of=epoch, is_elastic=True):
            exceptions.begin_epoch(epoch, is_elastic)
            error = exceptions.of_operation(code, text, of)
            try:
                exceptions.raise_end_of_epoch()
                return False
            except hvd.HorovodInternalError as raised:
                self.assertIs(raised, error)
                # The first one counts.
                self.assertIsNot(raised, exceptions.of_operation(code, text, of))
                with self.assertRaises(hvd.HorovodInternalError) as again:
                    self.state.check_host_updates()
                self.assertIs(again.exception, raised)
                return True

        self.assertTrue(kept(_native.ABORTED))
        for code in (_native.FAILED_PRECONDITION, _native.INVALID_ARGUMENT, _native.RESOURCE_EXHAUSTED, _native.INTERNAL):
            self.assertFalse(kept(code))
        self.assertFalse(kept(_native.ABORTED, of=epoch - 1))
        # Operations of process sets without that rank go on.
        for text in ("rank 3 (pid 5) has shut down; operations that need it cannot run", "rank 3 has shut down"):
            self.assertFalse(kept(_native.ABORTED, text, is_elastic=False))
            self.assertTrue(kept(_native.ABORTED, text))
        self.assertIsNotNone(exceptions.from_framework("maypole: rank 1 was lost [ABORTED, membership epoch 70]"))
        with self.assertRaises(hvd.HorovodInternalError):
            exceptions.raise_end_of_epoch()
        basics.shutdown()
        exceptions.raise_end_of_epoch()

    def test_without_elastic_ranks_a_commit_saves(self):
        self.make_elastic(False)
        self.said = ()
        self.assertEqual(self.commit_on_both(), [False, False])
        self.assertEqual(self.fake.submitted, [])

    def test_a_rank_that_is_alone_asks_nobody(self):
        self.use(1)
        self.state.commit()
        self.fake.change_wanted_by = {0: 1}
        with self.assertRaises(hvd.HostsUpdatedInterrupt):
            self.state.commit()
        self.assertEqual(self.fake.submitted, [])

    def test_sigterm_leaves_at_the_next_commit(self):
        self.use(1)
        before = signal.getsignal(signal.SIGTERM)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        steps = []

        def train(state):
            while len(steps) < 5:
                steps.append(1)
                if len(steps) == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                steps.append(1)
                state.commit()

        run = elastic.run_fn(train, self.fail)
        with self.assertRaises(SystemExit) as raised:
            run(self.state)
        self.assertEqual(raised.exception.code, 143)
        self.assertEqual(len(steps), 4)  # the step was finished
        self.assertFalse(self.fake.initialized)
        os.kill(os.getpid(), signal.SIGTERM)  # a second one does no harm

    def elastic_job(self):
        """Makes this process one of an elastic job, alone in its epoch."""
        self.use(1)
        for patch in (mock.patch.dict(os.environ, MAYPOLE_ELASTIC="1"), mock.patch.object(basics, "_finished", False)):
            patch.start()
            self.addCleanup(patch.stop)
        before = signal.getsignal(signal.SIGTERM)
        self.addCleanup(signal.signal, signal.SIGTERM, before)

    def test_says_that_it_has_finished_and_that_it_trains_again(self):
        self.elastic_job()
        said = []

        def train(state):
            state.commit()
            said.extend(self.fake.finished)

        elastic.run_fn(train, self.fail)(self.state)
        elastic.run_fn(train, self.fail)(self.state)
        self.assertEqual(said, [(0, True), (0, False)])
        self.assertEqual(self.fake.finished, [(0, True), (0, False), (0, True)])

    def test_has_finished_if_it_stops_early_but_not_if_it_fails_or_leaves(self):
        for how, finished in ((SystemExit(0), True), (SystemExit(), True), (SystemExit(3), False), (KeyError(1), False)):
            with self.subTest(how=how):
                self.elastic_job()
                self.fake.finished.clear()

                def train(_, error=how):
                    raise error

                with self.assertRaises(type(how)):
                    elastic.run_fn(train, self.fail)(self.state)
                self.assertEqual(self.fake.finished, [(0, True)] if finished else [])
        self.elastic_job()
        self.fake.finished.clear()

        def leave(state):
            os.kill(os.getpid(), signal.SIGTERM)
            state.commit()

        with self.assertRaises(SystemExit):
            elastic.run_fn(leave, self.fail)(self.state)
        self.assertEqual(self.fake.finished, [])
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # before run()
        with self.assertRaises(SystemExit):
            elastic.run_fn(leave, self.fail)(self.state)
        self.assertEqual(self.fake.finished, [])

    def test_horovods_places_in_an_elastic_job(self):
        self.elastic_job()
        self.fake.initialized = False
        names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE".split()
        with mock.patch.dict(os.environ, HOROVOD_ELASTIC="1"):
            basics.init()
            self.assertEqual([os.environ["HOROVOD_" + name] for name in names], ["0", "1", "0", "1", "0", "1"])
            self.fake._size = 3  # in the next epoch
            elastic.reset()
            self.assertEqual(os.environ["HOROVOD_SIZE"], "3")

    def test_who_comes_after_the_end_ends_well(self):
        self.elastic_job()
        self.fake.initialized = False
        self.fake.init = lambda: _native.OUT_OF_RANGE
        with self.assertRaises(SystemExit) as raised, self.assertLogs("maypole", "WARNING") as logs:
            basics.init()
        self.assertEqual(raised.exception.code, 0)
        self.assertIn("came too late", logs.output[0])
        # One that has trained itself must not end without a word.
        with mock.patch.object(basics, "_finished", True), self.assertRaises(hvd.HorovodInternalError):
            basics.init()

    def test_the_programs_own_handler_is_called_and_put_back(self):
        self.use(1)
        calls = []
        handler = lambda number, frame: calls.append(number)
        before = signal.signal(signal.SIGTERM, handler)
        self.addCleanup(signal.signal, signal.SIGTERM, before)

        def train(state):
            del state
            self.assertIsNot(signal.getsignal(signal.SIGTERM), handler)

        for _ in range(2):
            elastic.run_fn(train, self.fail)(self.state)
        # The launcher sends one when another process has finished.
        os.kill(os.getpid(), signal.SIGTERM)
        self.assertEqual(calls, [])
        self.assertIs(signal.getsignal(signal.SIGTERM), handler)

        def leave(state):
            os.kill(os.getpid(), signal.SIGTERM)
            state.commit()

        with self.assertRaises(SystemExit):
            elastic.run_fn(leave, self.fail)(self.state)
        self.assertEqual(calls, [signal.SIGTERM])

    def test_a_forked_child_ends_at_sigterm(self):
        self.use(1)
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        statuses = []

        def end_a_child():
            child = os.fork()
            if child == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(1)
            statuses.append(os.waitpid(child, 0)[1])

        def train(state):
            end_a_child()
            state.commit()

        with mock.patch.object(exceptions, "_joined", {os.getpid()}):
            elastic.run_fn(train, self.fail)(self.state)
            end_a_child()  # also when training is finished
        self.assertEqual(statuses, [signal.SIGTERM] * 2)

    def test_a_handler_that_is_not_pythons(self):
        self.use(1)
        before = signal.getsignal(signal.SIGTERM)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        real = signal.signal

        def none_first(number, handler):
            real(number, handler)

        with mock.patch.object(signal, "signal", none_first):
            self.assertEqual(
                elastic.run_fn(lambda state: 7, self.fail)(self.state), 7)
        with self.assertRaises(KeyError):
            elastic.run_fn(lambda state: {}[0], self.fail)(self.state)

    def test_sigterm_between_epochs_ends_at_once(self):
        self.use(1)
        before = signal.getsignal(signal.SIGTERM)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        waiting, go = threading.Event(), threading.Event()
        self.addCleanup(go.set)

        def init():
            waiting.set()
            go.wait()
            return _native.OK

        self.fake.init = init

        def terminate():
            waiting.wait()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=terminate, daemon=True).start()

        def train(_):
            raise error_of(_native.ABORTED)

        with self.assertRaises(SystemExit) as raised:
            elastic.run_fn(train, elastic.reset)(self.state)
        self.assertEqual(raised.exception.code, 143)

    def starts(self, *statuses):
        """reset() while init() answers with these statuses."""
        answers = list(statuses)
        calls = []

        def init():
            calls.append(1)
            self.fake._thread.error = "why"
            return answers.pop(0)

        self.fake.init = init
        with mock.patch.object(elastic, "_PAUSE_SECONDS", 0):
            try:
                elastic.reset()
            except hvd.HorovodInternalError as error:
                return len(calls), error.status
        return len(calls), _native.OK

    def test_a_start_that_fails_is_tried_again(self):
        left = mock.Mock(return_value=_native.OK)
        self.fake.leave_epoch = left
        aborted, lost, late = (_native.ABORTED, _native.UNAVAILABLE,
                               _native.DEADLINE_EXCEEDED)
        self.assertEqual(self.starts(_native.OK), (1, _native.OK))
        self.assertEqual(self.starts(aborted, lost, _native.OK),
                         (3, _native.OK))
        self.assertEqual(self.starts(aborted, lost, aborted), (3, aborted))
        self.assertEqual(self.starts(late), (1, late))
        self.assertEqual(left.call_count, 4)

    def test_is_elastic(self):
        self.assertTrue(basics.is_elastic())
        self.make_elastic(False)
        self.assertFalse(basics.is_elastic())


if __name__ == "__main__":
    unittest.main()
