"""maypole._keras without Keras: schedules, commits, and which gradients are reduced how."""

import sys
import types
import unittest
from unittest import mock

import fake_library
import numpy as np
import torch

from maypole import _native
from maypole._keras import backends, classes, elastic, schedules
from maypole._keras.gradients import BackendGradients
from maypole._keras.reduction import Ahead, Step
from maypole.common import training_arguments
from maypole.common.elastic import State


class Doubling(BackendGradients):
    """Doubles gradients, and notes which."""

    def __init__(self):
        self.seen = []

    def reduce(self, reduction, grads, prefix, indices, own, postscale):
        self.seen.append((prefix, list(indices), postscale))
        return [2 * g for g in grads]


def step_of(local, scale_local=True):
    reduction = types.SimpleNamespace(gradients=Doubling(), postscale=1.0, scale_local_gradients=scale_local,
                                      process_set=types.SimpleNamespace(size=lambda: 4))
    count = len(local)
    return reduction.gradients, Step(reduction, "p", [f"v{i}" for i in range(count)], range(10, 10 + count), local)


class StepTest(unittest.TestCase):

    def test_local_gradients_are_divided_and_not_reduced(self):
        gradients, step = step_of([False, True, False])
        self.assertEqual(step.reduced([1.0, 8.0, None], False), [2.0, 2.0, None])
        self.assertEqual(gradients.seen, [("p", [10], 1.0)])

    def test_local_gradients_as_they_are(self):
        _, step = step_of([True, False], scale_local=False)
        self.assertEqual(step.reduced([8.0, 1.0], False), [8.0, 2.0])

    def test_a_factor_is_for_all(self):
        gradients, step = step_of([False, True])
        self.assertEqual(step.reduced([1.0, 8.0], True, 3), [2.0, 6.0])
        self.assertEqual(gradients.seen, [("p", [10], 3.0)])

    def test_some_of_a_step(self):
        _, step = step_of([False, True, False])
        some = step.only([True, False, True])
        self.assertEqual((some.variables, some.indices, some.local), (["v0", "v2"], [10, 12], [False, False]))
        self.assertEqual(step.completed([None, 1.0, 2.0]), [None, 1.0, 2.0])

    def test_the_older_name_of_groups(self):
        with self.assertWarns(DeprecationWarning):
            self.assertEqual(training_arguments.groups_of(3, None), 3)
        self.assertEqual(training_arguments.groups_of(0, [["a"]]), [["a"]])


class TorchGradientsTest(unittest.TestCase):

    def test_a_rank_without_a_gradient_gets_zeros_where_others_have_one(self):
        fake = fake_library.FakeLibrary(2)
        _native.use(fake)
        self.addCleanup(_native.use, None)
        from maypole._keras import gradients_torch
        from maypole.common.constants import Sum
        from maypole.common.process_sets import global_process_set
        from maypole.torch.compression import Compression
        reduction = types.SimpleNamespace(compression=Compression.none, op=Sum, prescale=1.0,
                                          process_set=global_process_set)
        variables = [types.SimpleNamespace(value=torch.zeros(2)) for _ in range(3)]
        reduced = [None, None]

        def rank(r):
            gradients = gradients_torch.Gradients()
            for step in range(2):
                grads = [torch.ones(2), torch.ones(2) if r == step else None, None]
                grads = gradients.complete(reduction, grads, "p", [0, 1, 2], variables)
                reduced[r] = [grad is not None for grad in grads], [
                    grad.tolist() for grad in gradients.reduce(reduction, grads[:2], "p", [0, 1], True, 1.0)]

        fake_library.run_ranks(fake, rank)
        self.assertEqual(reduced, [([True, True, False], [[2.0, 2.0], [1.0, 1.0]])] * 2)


class AheadTest(unittest.TestCase):

    def test_what_has_been_reduced_is_not_reduced_again_once(self):
        ahead = Ahead()
        self.assertIsNone(ahead.take(["a", "b"], None))
        ahead.note(["a", "b"], [1.0, 2.0], None)
        self.assertEqual(ahead.take(["b"], None), [2.0])
        self.assertIsNone(ahead.take(["a", "b"], None))

    def test_only_in_the_same_graph(self):
        ahead = Ahead()
        ahead.note(["a"], [1.0], "graph")
        self.assertIsNone(ahead.take(["a"], "another"))

    def test_some_of_several_is_an_error(self):
        ahead = Ahead()
        ahead.note(["a"], [1.0], None)
        with self.assertRaisesRegex(RuntimeError, "of 2 gradients, of which 1 have been reduced"):
            ahead.take(["a", "b"], None)


class KerasOfTest(unittest.TestCase):
    """An optimizer of another Keras than the module's."""

    def keras(self, root):
        optimizer = type("Optimizer", (), {"__module__": root + ".src.optimizers"})
        return types.SimpleNamespace(optimizers=types.SimpleNamespace(Optimizer=optimizer))

    def test_the_optimizers_own(self):
        three, two = self.keras("keras"), self.keras("tf_keras")
        with mock.patch.dict(sys.modules, {"keras": three, "tf_keras": two}):
            self.assertIs(backends.keras_of(three.optimizers.Optimizer(), three), three)
            self.assertIs(backends.keras_of(two.optimizers.Optimizer(), three), two)
            self.assertIs(backends.keras_of(three.optimizers.Optimizer(), two), three)
            self.assertIs(backends.keras_of("sgd", three), three)


class Base:
    """What keras.callbacks.Callback has."""

    params = {"steps": 4}

    def on_epoch_end(self, epoch, logs=None):
        pass


class Schedule(schedules.LearningRateSchedule, Base):
    pass


class Warmup(schedules.LearningRateWarmup, Base):
    pass


class Buffer:
    value = 1.0

    def assign(self, value):
        self.value = value

    def __mul__(self, factor):
        return self.value * factor


def run(callback, epochs, optimizer):
    """The learning rate of each batch."""
    callback.model = types.SimpleNamespace(optimizer=optimizer)
    callback.on_train_begin()
    rates = []
    for epoch in range(epochs):
        callback.on_epoch_begin(epoch)
        for batch in range(4):
            callback.on_train_batch_begin(batch)
            rates.append(optimizer.learning_rate)
        logs = {}
        callback.on_epoch_end(epoch, logs)
        assert logs["lr"] == optimizer.learning_rate
    return rates


class ScheduleTest(unittest.TestCase):

    def test_a_number_decays_from_the_start_epoch_on(self):
        optimizer = types.SimpleNamespace(learning_rate=8.0)
        rates = run(Schedule(8.0, 0.5, start_epoch=1, end_epoch=3), 4, optimizer)
        self.assertEqual(rates[::4], [8.0, 8.0, 4.0, 4.0])

    def test_batches_between_epochs(self):
        optimizer = types.SimpleNamespace(learning_rate=1.0)
        rates = run(Schedule(2.0, lambda epoch: epoch, staircase=False), 1, optimizer)
        self.assertEqual(rates, [0.0, 0.5, 1.0, 1.5])

    def test_momentum_is_multiplied_when_the_rate_changes(self):
        buffer = Buffer()
        optimizer = types.SimpleNamespace(learning_rate=1.0, momentum=0.9, momentums=[buffer, None])
        run(Schedule(1.0, 0.5), 3, optimizer)
        self.assertEqual(buffer.value, 0.25)
        run(Schedule(1.0, 0.5, momentum_correction=False), 3, optimizer)
        self.assertEqual(buffer.value, 0.25)

    @mock.patch("maypole.common.basics.size", return_value=4)
    def test_warm_up_ends_at_the_rate(self, _):
        optimizer = types.SimpleNamespace(learning_rate=1.0)
        rates = run(Warmup(8.0, warmup_epochs=1), 2, optimizer)
        self.assertEqual(rates, [3.5, 5.0, 6.5, 8.0] + [8.0] * 4)

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "initial_lr=None"):
            Schedule(None, 0.5)
        callback = Schedule(1.0, 0.5, staircase=False)
        callback.params = {}
        with self.assertRaisesRegex(ValueError, "pass steps_per_epoch"):
            callback.on_train_begin()


class Variable:
    def __init__(self, value):
        self.value = np.float32(value)

    def numpy(self):
        return self.value

    def assign(self, value):
        self.value = np.float32(value)


class Optimizer:
    """Has one variable as soon as it is built."""

    def __init__(self):
        self.variables = []

    @property
    def built(self):
        return bool(self.variables)

    def build(self, variables):
        self.variables = [Variable(0)]

    def apply_gradients(self):
        pass


def model_of(weight, **attributes):
    return types.SimpleNamespace(built=True, weights=[Variable(weight)], trainable_variables=[], **attributes)


class KerasStateTest(unittest.TestCase):

    def on_two_ranks(self, function):
        fake = fake_library.FakeLibrary(2)
        _native.use(fake)
        self.addCleanup(_native.use, None)
        fake_library.run_ranks(fake, function)

    def test_it_has_all_optimizers_of_the_model(self):
        values = {}

        def rank(r):
            model = model_of(r, optimizer=Optimizer(), second=Optimizer())
            state = elastic.KerasState(model)
            tracked = [model.weights[0], model.optimizer.variables[0], model.second.variables[0]]

            def add(number):
                for i, variable in enumerate(tracked):
                    variable.assign(variable.value + number + i)
            add(10 * (r + 1))
            state.sync()
            synchronized = [float(v.value) for v in tracked]
            add(100)
            state.restore()
            values[r] = synchronized, [float(v.value) for v in tracked]

        self.on_two_ranks(rank)
        self.assertEqual(values, {r: ([10, 11, 12], [10, 11, 12]) for r in range(2)})


    def test_it_has_the_optimizer_that_the_model_has_now(self):
        values = {}

        def rank(r):
            model = model_of(0, optimizer=Optimizer())
            state = elastic.KerasState(model, model.optimizer)
            model.optimizer = Optimizer()  # as compile() does
            state.save()
            model.optimizer.variables[0].assign(r + 7)
            state.sync()
            values[r] = float(model.optimizer.variables[0].value)

        self.on_two_ranks(rank)
        self.assertEqual(values, {0: 7, 1: 7})

    def test_a_model_that_is_not_compiled_yet_is_an_error(self):
        def rank(r):
            state = elastic.KerasState(model_of(0, optimizer=None))
            with self.assertRaisesRegex(ValueError, "compile it before the state is made"):
                state.sync()
            state.optimizer = Optimizer()
            state.sync()

        self.on_two_ranks(rank)


    def test_whether_some_passes_of_a_step_are_made(self):
        keras_3 = Optimizer()
        keras_3.gradient_accumulation_steps, keras_3._iterations = 3, Variable(6)

        class Keras2(Optimizer):
            pass

        keras_2 = Keras2()
        classes.become(keras_2, lambda base: {}, types.SimpleNamespace(
            reduction=types.SimpleNamespace(passes=2), sums=types.SimpleNamespace(counter=None)))
        state = elastic.KerasState(model_of(0, optimizer=keras_2, second=keras_3, third=Optimizer()))
        self.assertEqual(state._passes_if_within_step(), 0)
        keras_3._iterations.assign(7)
        self.assertEqual(state._passes_if_within_step(), 3)
        keras_3._iterations.assign(9)
        for count, expected in ((0, 0), (1, 2)):
            classes.state_of(keras_2).sums.counter = Variable(count)
            self.assertEqual(state._passes_if_within_step(), expected)


class ElasticTest(unittest.TestCase):

    def test_commits_and_what_is_done(self):
        state = mock.create_autospec(State, instance=True)
        state.epoch, state.batch = 2, 5
        callbacks = [type("C", (kind, Base), {})(state, *args) for kind, *args in [
            (elastic.UpdateEpochState,), (elastic.UpdateBatchState,), (elastic.CommitState, 2)]]
        callbacks[2].params = {"steps": 5}
        epoch, batches, commit = callbacks
        epoch.on_train_begin()
        commit.on_train_begin()
        batches.on_epoch_begin(0)
        for batch in range(5):
            batches.on_train_batch_end(batch)
            self.assertEqual(state.batch, 6 + batch)  # of the five that were done before
            commit.on_train_batch_end(batch)
        self.assertEqual(state.commit.call_count, 2)
        for callback in callbacks:
            callback.on_epoch_end(0)
        self.assertEqual((state.epoch, state.batch, state.commit.call_count), (3, 0, 3))
        with self.assertRaisesRegex(ValueError, "positive integer"):
            type("C", (elastic.CommitState, Base), {})(state, 0)

    def test_batches_of_one_call(self):
        """steps_per_execution: Keras tells the first of them, or the last one."""
        model = types.SimpleNamespace(steps_per_execution=4)
        for numbers, steps in (([0, 4, 8], 10), ([0, 4, 8], 9), ([3, 7, 9], 10), ([3, 7, 8], 9), ([3, 7, 9], None)):
            commits = []
            state = types.SimpleNamespace(batch=5, commit=lambda commits=commits: commits.append(state.batch))
            batches, commit = [type("C", (kind, Base), {"params": {"steps": steps}, "model": model})(state, *args)
                               for kind, *args in ((elastic.UpdateBatchState,), (elastic.CommitState, 8))]
            commit.on_train_begin()
            seen = []
            for callback in (batches, commit):
                callback.on_epoch_begin(0)
            for number in numbers:
                for callback in (batches, commit):
                    callback.on_train_batch_end(number)
                seen.append(state.batch)
            self.assertEqual((seen, commits), ([9, 13, 5 + (steps or 10)], [13]))

    def test_the_commit_after_the_last_batch_is_that_of_the_epoch(self):
        for params, expected in (({"steps": 4}, [0, 1, 2, "end"]), ({"steps": None}, [0, 1, 2, 3, "end"]),
                                 ({}, [0, 1, 2, 3, "end"])):
            commits, now = [], [0]
            state = types.SimpleNamespace(commit=lambda commits=commits, now=now: commits.append(now[0]))
            callback = type("C", (elastic.CommitState, Base), {"params": params})(state)
            callback.on_train_begin()
            for now[0] in range(4):
                callback.on_train_batch_end(now[0])
            now[0] = "end"
            callback.on_epoch_end(0)
            self.assertEqual(commits, expected)

    def test_epochs_of_fits_that_begin_where_the_state_is(self):
        for initial in (0, 2):  # fit(epochs=all - state.epoch) and fit(initial_epoch=state.epoch, epochs=all)
            state = types.SimpleNamespace(epoch=2)
            callback = type("C", (elastic.UpdateEpochState, Base), {})(state)
            for first in (initial, initial and 4):  # two fit() after each other
                callback.on_train_begin()
                before = state.epoch
                for done, epoch in enumerate((first, first + 1)):
                    callback.on_epoch_begin(epoch)
                    self.assertEqual(state.epoch, before + done)
                    callback.on_epoch_end(epoch)
                    self.assertEqual(state.epoch, before + done + 1)
            self.assertEqual(state.epoch, 6)

    def test_a_new_fit_does_not_use_what_an_interrupted_one_has_left(self):
        state = object.__new__(elastic.KerasState)
        state.model = types.SimpleNamespace(train_function="of 2 ranks", _eval_data_handler="of a shard")
        state.reset()
        self.assertEqual(vars(state.model), {"train_function": None, "_eval_data_handler": None})


if __name__ == "__main__":
    unittest.main()
