"""Several trainings in one program: processes that come in a later one (maypole.common.trainings)."""

import contextlib
import gc
import os
import threading
import unittest
from unittest import mock

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
# pylint: disable=wrong-import-position
import maypole.torch as hvd
from maypole.common import basics, elastic, trainings


class TrainingsTest(fake_library.TwoRanks):

    def setUp(self):
        for patch in (mock.patch.dict(os.environ, MAYPOLE_ELASTIC="1"),
                      mock.patch.object(elastic, "_own_trainings", self.own_trainings),
                      mock.patch.object(basics, "_finished", False)):
            patch.start()
            self.addCleanup(patch.stop)
        self.of_thread = threading.local()
        self.epochs = []

    def own_trainings(self):
        if not hasattr(self.of_thread, "trainings"):
            self.of_thread.trainings = trainings.Trainings()
        return self.of_thread.trainings

    def complete(self, name, state, result=None):
        """As if run(name) had returned in this process, in an earlier epoch."""
        with self.own_trainings().running(name):
            self.own_trainings().complete(state, result)
        self.own_trainings()._state_of_epoch = None

    def run_training(self, name, state, function=lambda state: None):
        function.__qualname__ = name
        return elastic.run_fn(function, lambda: self.epochs.append((hvd.rank(), state._synced_in)))(state)

    @staticmethod
    def state(**kwargs):
        return elastic.ObjectState(hvd.broadcast_object, hvd.rank, **kwargs)

    def test_a_process_that_comes_in_a_later_training_skips_the_earlier_ones(self):
        entered = []

        def rank(r):
            states = [self.state(step=100 * (1 - r) + i) for i in range(3)]
            if r == 0:
                self.complete("first", states[0], {"loss": 7})
                self.complete("second", states[1])
                self.run_training("third", states[2], lambda _: entered.append(r))
                return [state.step for state in states]
            results = [self.run_training(name, state, lambda _, name=name: entered.append((r, name)))
                       for name, state in zip(("first", "second", "third"), states)]
            return results, [state.step for state in states]

        with self.assertLogs("maypole.elastic", "WARNING") as logs:
            ahead, behind = self.both(rank)
        self.assertEqual(behind, ([{"loss": 7}, None, None], [100, 101, 102]))
        self.assertEqual(ahead, [100, 101, 102])
        self.assertEqual(sorted(map(str, entered)), ["(1, 'third')", "0"])
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], r"completed training 1 of the program \(first\), and those after it up to "
                                         r"training 2, and are in training 3 \(third\)")

    def test_a_loop_over_one_state(self):
        def rank(r):
            state = self.state(step=5 * (1 - r))
            calls = []
            syncs = mock.patch.object(state, "sync", wraps=state.sync).start()
            for epoch in range(3):
                if r == 0 and epoch < 2:
                    self.complete("epoch", state)
                    continue
                self.run_training("epoch", state, lambda _, epoch=epoch: calls.append((epoch, state.step)))
                if r == 1 and epoch < 2:
                    state.step = 0
            return calls, syncs.call_count

        with self.assertLogs("maypole.elastic", "WARNING"):
            self.assertEqual(self.both(rank), [([(2, 5)], 1)] * 2)

    def test_a_process_that_uses_other_states_than_rank_0_is_refused(self):
        own = trainings.Trainings()
        own._awaited = self.state()
        with own.running("epoch"), self.assertRaisesRegex(RuntimeError, "enters training 1 .*epoch.* with another state"):
            own.meet(self.state())

    def test_those_that_were_behind_do_not_go_on_alone(self):
        def rank(r):
            state = self.state()
            self.complete("pre", state)
            self.own_trainings()._borrows = True
            with self.assertRaisesRegex(RuntimeError, "all ranks that had completed 1 trainings .* were lost"):
                self.run_training("fine", state)

        self.both(rank)

    def test_different_functions_are_an_error_on_all_ranks(self):
        def rank(r):
            with self.assertRaisesRegex(RuntimeError, "different functions as training 1 .*pre on rank 0; fine on rank 1"):
                self.run_training(("pre", "fine")[r], self.state())

        self.both(rank)

    def test_another_function_than_the_others_had_is_an_error(self):
        def rank(r):
            state = self.state()
            if r == 0:
                self.complete("pre", state)
                # Until the other process ends.
                with mock.patch.object(state, "sync"):
                    self.own_trainings().running("fine").__enter__()
                    self.own_trainings().meet(self.state())
            else:
                with self.assertRaisesRegex(RuntimeError, "calls other as training 1 .*was pre on rank 0"):
                    self.run_training("other", state)

        with self.assertLogs("maypole.elastic", "WARNING"):
            self.both(rank)

    def without(self, complete):
        """Rank 0 has completed a training, which `complete` tells; the other one must fail."""
        met = []

        def rank(r):
            if r == 0:
                complete()
                with self.own_trainings().running("fine"), mock.patch.object(
                        trainings.objects, "allgather_object", self.once(trainings.objects.allgather_object)):
                    with self.assertRaises(EOFError):  # what the death of the other process would be
                        self.own_trainings().meet(self.state())
                met.append(r)
            else:
                with self.assertRaisesRegex(RuntimeError, r"training 1 of the program \(pre\), but other ranks are in "
                                            r"training 2 \(fine\).* Keep the states .* 64 KiB.* which phase"):
                    self.run_training("pre", self.state())
                met.append(r)

        self.both(rank)
        self.assertEqual(sorted(met), [0, 1])

    @staticmethod
    def once(function):
        calls = []

        def called(*args):
            if hvd.rank() == 0 and calls:
                raise EOFError()
            if hvd.rank() == 0:
                calls.append(1)
            return function(*args)

        return called

    def test_a_state_that_is_gone_is_an_error_on_those_that_need_it(self):
        def complete():
            self.complete("pre", self.state())
            gc.collect()

        self.without(complete)

    def test_so_is_a_result_that_is_not_kept(self):
        state = []

        def complete(result):
            state.append(self.state())
            self.complete("pre", state[-1], result)

        self.without(lambda: complete(bytes(trainings.RESULT_BYTES)))
        self.without(lambda: complete(threading.Lock()))
        self.without(lambda: complete(x for x in ()))

    def test_results_of_up_to_64_kib_are_kept(self):
        for result, kept in ((None, True), (b"x" * 65000, True), (b"x" * 66000, False), (["y" * 900] * 9, True),
                             ([str(i) * 900 for i in range(90)], False)):
            self.assertEqual(trainings._pickled(result) is not None, kept)

    def test_rank_0_is_behind_begins_an_epoch_in_which_it_comes_later(self):
        """A death has made it return to its last commit, when the others had completed the training."""
        def rank(r):
            state = self.state()
            if r == 1:
                self.complete("pre", state)
            own = self.own_trainings()
            with own.running(("pre", "fine")[r]):
                for _ in range(3):
                    with self.assertRaises(hvd.HostsUpdatedInterrupt):
                        own.meet(state)
                    synced = state._synced_in
                with self.assertRaisesRegex(RuntimeError, "rank 0 has completed 0 trainings"):
                    own.meet(state)
            return synced

        self.assertEqual(self.both(rank), [None, basics.joins()])

    def test_a_death_while_it_catches_up(self):
        """The ranks exchange once more in the next epoch."""
        barrier = threading.Barrier(2)
        joins = [7]

        def rank(r):
            first, second = self.state(step=1 - r), self.state(step=1 - r)
            failing = [hvd.HorovodInternalError("rank 2 died")]

            def sync(self=second):
                if failing:
                    barrier.wait()
                    raise failing.pop()
                elastic.ObjectState.sync(self)

            second.sync = sync

            def begin():
                if barrier.wait() == 0:
                    joins[0] += 1
                    self.fake.initialized = True
                barrier.wait()

            def call(name, state):
                def train(_):
                    return state.step
                train.__qualname__ = name
                return elastic.run_fn(train, begin)(state)

            if r == 0:
                self.complete("first", first)
            else:
                self.assertIsNone(call("first", first))
            return call("second", second)

        with mock.patch.object(basics, "joins", lambda: joins[0]), self.assertLogs("maypole.elastic", "WARNING"), \
                mock.patch.object(basics, "abandon_epoch"):
            self.assertEqual(self.both(rank), [1, 1])

    def test_an_interrupted_training_does_not_count(self):
        def rank(_):
            with contextlib.suppress(KeyError):
                self.run_training("train", self.state(), lambda _: {}["x"])
            self.run_training("train", self.state())
            own = self.own_trainings()
            with own.running("outer"):
                self.run_training("inner", self.state())
            return len(own._completed)

        self.assertEqual(self.both(rank), [1, 1])

    def test_jobs_that_are_not_elastic_exchange_nothing(self):
        def rank(_):
            state = mock.Mock(_synced_in=None)
            self.run_training("train", state, lambda _: bytes(100000))
            self.run_training("another", state)
            return len(self.own_trainings()._completed)

        with mock.patch.dict(os.environ, MAYPOLE_ELASTIC="0"):
            self.assertEqual(self.both(rank), [2, 2])
        self.assertEqual(self.fake.submitted, [])


if __name__ == "__main__":
    unittest.main()
