"""ObjectState and TorchState: save, restore, sync."""

import os
import threading
import unittest
from unittest import mock

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
# pylint: disable=wrong-import-position
import maypole.torch as hvd
from maypole.common import exceptions
from maypole.torch.elastic import state as states


def make_state(scale=1.0, **options):
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * scale,
                                momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(),
                                         **options)
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    return hvd.elastic.TorchState(model, optimizer, sampler=sampler, batch=0,
                                  losses=[])


def train(state, times=1):
    for _ in range(times):
        state.optimizer.zero_grad()
        x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
        (state.model(x)**2).mean().backward()
        state.optimizer.step()
        state.sampler.record_batch(state.batch, 1)
        state.batch += 1
        state.losses.append(state.batch)


def contents(state):
    """All values, comparable."""
    optimizer = state.optimizer.state_dict()
    return ({k: v.tolist() for k, v in state.model.state_dict().items()},
            [{k: v.tolist() if torch.is_tensor(v) else v
              for k, v in entry.items()}
             for entry in optimizer["state"].values()],
            optimizer["param_groups"], state.sampler.state_dict(), state.batch,
            list(state.losses))


class Scaler:
    """As torch's GradScaler, which torch 1.13 has for GPUs only."""

    def __init__(self):
        self._per_optimizer_states = {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def scale(self, loss):
        return loss * 8.0

    def unscale_(self, optimizer):
        if id(optimizer) in self._per_optimizer_states:
            raise RuntimeError("unscale_() has already been called")
        self._per_optimizer_states[id(optimizer)] = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.mul_(1 / 8.0)


class Trainer:
    """Without a state_dict(): it is copied."""

    def __init__(self, state):
        self.model = state.model
        self.weight = state.model[0].weight
        self.group = state.optimizer.param_groups[0]
        self.steps = 0


class StateTest(unittest.TestCase):

    def setUp(self):
        self.use(1)

    def use(self, size):
        self.fake = fake_library.FakeLibrary(size)
        _native.use(self.fake)

    def both(self, function):
        self.use(2)
        return fake_library.run_ranks(self.fake, function)

    def test_what_is_saved_stays_where_the_optimizer_keeps_what_it_loads(self):
        state = make_state()
        optimizer = state.optimizer

        def load_as_pytorch_2(state_dict):
            parameters = optimizer.param_groups[0]["params"]
            for number, values in state_dict["state"].items():
                optimizer.state[parameters[number]] = dict(values)

        train(state, 2)
        state.save()
        saved = contents(state)
        with mock.patch.object(optimizer, "load_state_dict", load_as_pytorch_2):
            for _ in range(2):
                state.restore()
                self.assertEqual(contents(state), saved)
                train(state)

    def test_restore_returns_to_the_last_save(self):
        state = make_state()
        first = contents(state)
        train(state)
        state.restore()  # nothing was committed: as it was made
        self.assertEqual(contents(state), first)
        train(state, 2)
        state.save()
        saved = contents(state)
        train(state, 3)
        self.assertNotEqual(contents(state), saved)
        for _ in range(2):  # what is restored is not the copy itself
            state.restore()
            self.assertEqual(contents(state), saved)
            train(state)
        self.assertEqual(saved[4:], (2, [1, 2]))

    def test_sync_gives_all_ranks_the_state_of_rank_0(self):

        def rank(r):
            state = make_state(scale=1.0 + r)
            if r == 0:  # without communication
                state.optimizer._distributed = False
                state.batch = 3
                state.losses.append("a")
                state.model[1].running_mean.fill_(7.0)
                state.sampler.record_batch(1, 2)
            state.sync()
            state.batch += 1
            state.restore()
            return contents(state)

        zero, one = self.both(rank)
        self.assertEqual(zero, one)
        self.assertEqual(zero[0]["0.weight"], [[1.0, 1.0]])
        self.assertEqual(zero[0]["1.running_mean"], [7.0])
        self.assertAlmostEqual(zero[2][0]["lr"], 0.1)
        self.assertEqual(zero[3]["processed_num"], 4)
        self.assertEqual(zero[4:], (3, ["a"]))

    def test_a_sync_that_fails_in_the_middle_changes_nothing_that_is_saved(self):

        def rank(r):
            state = make_state(scale=1.0 + r)
            state.epoch = 1
            state.losses = [r]
            state.sampler.record_indices([r])
            state.save()
            saved = contents(state)
            with mock.patch.object(state._handlers["optimizer"], "sync",
                                   side_effect=hvd.HorovodInternalError):
                with self.assertRaises(hvd.HorovodInternalError):
                    state.sync()
            self.assertEqual(state.model[0].weight.tolist(), [[1.0, 1.0]])
            state.restore()
            self.assertEqual(contents(state), saved)
            state.sync()
            self.assertEqual(state.losses, [0])
            return contents(state)

        zero, one = self.both(rank)
        self.assertEqual(zero, one)
        self.assertEqual(zero[3]["processed_indices"], {0, 1})

    def test_the_optimizers_history_is_synchronized(self):

        def rank(r):
            state = make_state()
            train(state, 2)
            if r == 1:  # a new process
                self.fake.counts.clear()
                state = make_state(scale=5.0)
            state.sync()
            train(state, 2)
            return contents(state)

        zero, one = self.both(rank)
        self.assertEqual(zero, one)
        self.assertEqual(len(zero[1]), 4)  # momentum of each parameter

    def check_interrupted_step(self, **options):
        """The epoch ends when rank 0 has begun a step and rank 1 has not."""
        begun, ended = [], threading.Event()

        def rank(r):
            state = make_state(**options)
            train(state, 2)
            state.save()
            saved = contents(state)
            if r == 0:
                x = torch.ones(2, 2)
                state.optimizer.zero_grad()
                (state.model(x)**2).mean().backward()
                with self.fake._lock:
                    for waiting in self.fake._waiting.values():
                        for submission in waiting.values():
                            begun.append(submission.name)
                            submission.fail(_native.ABORTED, "rank 9 died")
                    self.fake._waiting.clear()
                    self.fake._lock.notify_all()
                state.restore()
                ended.set()
            ended.wait()
            exceptions.forget_end_of_epoch()  # another one begins
            self.assertEqual(contents(state), saved)
            state.sync()
            self.assertEqual(contents(state), saved)
            train(state)
            return contents(state)

        zero, one = self.both(rank)
        self.assertGreater(len(begun), 0)
        self.assertEqual(zero, one)
        self.assertEqual(self.fake.pending(), 0)

    def test_a_step_that_was_interrupted_leaves_nothing_behind(self):
        self.check_interrupted_step()

    def test_the_same_with_gradients_in_buckets(self):
        self.check_interrupted_step(gradient_as_bucket_view=True)

    def fail_all(self):
        """A rank dies: what the other one has begun fails."""
        with self.fake._lock:
            for waiting in self.fake._waiting.values():
                for submission in waiting.values():
                    submission.fail(_native.ABORTED, "rank 9 died")
            self.fake._waiting.clear()
            self.fake._lock.notify_all()

    def test_a_death_that_the_program_has_overlooked_is_raised_again(self):
        """As by `except RuntimeError: continue` for bad batches."""
        ended = threading.Event()
        self.addCleanup(exceptions.forget_end_of_epoch)

        def rank(r):
            state = make_state(backward_passes_per_step=1)
            train(state, 2)
            state.save()
            if r == 1:
                ended.wait()
                return
            state.optimizer.zero_grad()
            (state.model(torch.ones(2, 2))**2).mean().backward()
            self.fail_all()
            first = None
            for act in (state.optimizer.synchronize, state.optimizer.zero_grad,
                        lambda: (state.model(torch.ones(2, 2))**2).mean().backward(),
                        state.optimizer.zero_grad, state.optimizer.step, state.commit, state.check_host_updates):
                with self.assertRaisesRegex(hvd.HorovodInternalError, "rank 9 died") as raised:
                    act()
                first = first or raised.exception
                self.assertIs(raised.exception, first)
                state.batch += 100
            state.restore()  # clears the gradients
            self.assertEqual(state.batch, 2)
            ended.set()

        self.both(rank)

    def test_a_death_between_backward_and_zero_grad_is_raised(self):
        ended = threading.Event()
        self.addCleanup(exceptions.forget_end_of_epoch)

        def rank(r):
            state = make_state()
            train(state)
            if r == 1:
                ended.wait()
                return
            loss = (state.model(torch.ones(2, 2))**2).mean()
            loss.backward()
            self.fail_all()
            with self.assertRaisesRegex(hvd.HorovodInternalError, "rank 9 died"):
                state.optimizer.synchronize()
            loss = (state.model(torch.ones(2, 2))**2).mean()
            with self.assertRaisesRegex(hvd.HorovodInternalError, "rank 9 died"):
                loss.backward()
            with self.assertRaisesRegex(hvd.HorovodInternalError, "rank 9 died"):
                state.optimizer.zero_grad()
            ended.set()

        self.both(rank)

    def commits_within_steps(self, commits, change=(), passes=2):
        """The batches that are saved, with commits after these numbers of backward passes; rank 1 wants a change from
        the second number on."""

        def rank(r):
            state = make_state(backward_passes_per_step=passes)
            saved = []
            state.save = lambda: saved.append(state.batch)
            try:
                while state.batch < max(commits):
                    (state.model(torch.ones(2, 2))**2).mean().backward()
                    state.batch += 1
                    if state.batch % passes == 0:
                        state.optimizer.step()
                        state.optimizer.zero_grad()
                    self.fake.change_wanted_by = {1: 1} if change and state.batch >= change else {}
                    if state.batch in commits:
                        state.commit()
                    else:
                        state.check_host_updates()
            except hvd.HostsUpdatedInterrupt:
                saved.append("interrupted at %d" % state.batch)
            return saved

        with mock.patch.dict(os.environ, MAYPOLE_ELASTIC="1"):
            zero, one = self.both(rank)
        self.assertEqual(zero, one)
        return zero

    def test_a_commit_between_the_passes_of_a_step_is_put_off(self):
        self.assertEqual(self.commits_within_steps(range(1, 7)), [2, 4, 6])
        self.assertEqual(self.commits_within_steps((3, 4, 5, 6), 3), [4, "interrupted at 4"])
        self.assertEqual(self.commits_within_steps((3, 9), 7), ["interrupted at 8"])
        self.assertEqual(self.commits_within_steps(range(1, 9), passes=4), [4, 8])

    def test_commits_that_never_come_after_a_step_are_an_error(self):
        with self.assertRaisesRegex(ValueError, r"the last 4 commits came between .*per_step=2.*commit after step\(\)"):
            self.commits_within_steps((1, 3, 5, 7))

    def test_what_cannot_be_copied_is_named(self):
        model = torch.nn.Linear(1, 1)
        for value in ((i for i in range(3)), threading.Lock(), iter(torch.utils.data.DataLoader(range(3)))):
            for make in (lambda **kwargs: hvd.elastic.TorchState(model, **kwargs),
                         lambda **kwargs: hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, **kwargs)):
                with self.assertRaisesRegex(TypeError, "State: the attribute 'bad', a .*, cannot be copied .*pickle"):
                    make(good=1, bad=value)
                # A tensor with a graph: `state.loss = loss`.
                state = make(good=1, bad=None)
                for loss in (model.weight.sum(), [model.weight.sum()], {"loss": model.weight.sum()}):
                    state.bad = loss
                    with self.assertRaisesRegex(TypeError, r"State: the attribute 'bad', a .*loss.item\(\) or loss.detach\(\)"):
                        state.save()
                state.bad = model.weight.sum().detach()
                state.save()
                # Other errors stay what they are.
                lost = hvd.HorovodInternalError("rank 1 died")
                with self.assertRaises(hvd.HorovodInternalError):
                    state._named(mock.Mock(side_effect=lost), mock.Mock(side_effect=lost), {"good": 1})

        class Unpicklable:
            def __deepcopy__(self, memo):
                return self

            def __reduce__(self):
                raise TypeError("cannot be pickled")

        state = hvd.elastic.TorchState(model, good=[1], bad=Unpicklable())
        with self.assertRaisesRegex(TypeError, "TorchState: the attribute 'bad', a Unpicklable, cannot be copied"):
            state._named(state._broadcast, state._references().dumps, state._objects())

    def test_values_are_attributes_that_may_be_assigned(self):
        state = make_state()
        other = torch.nn.Linear(2, 2)
        state.model = other
        with torch.no_grad():
            other.weight.fill_(9.0)
        state.restore()
        self.assertIs(state.model, other)
        self.assertNotIn(9.0, other.weight.flatten().tolist())
        state.losses = [1]
        state.save()
        state.losses.append(2)
        state.restore()
        self.assertEqual(state.losses, [1])
        nothing = hvd.elastic.TorchState(epoch=4)
        self.assertEqual((nothing.model, nothing.epoch), (None, 4))

    def test_what_refers_to_the_optimizer_goes_on_steering_it(self):

        def rank(r, schedule):
            state = make_state(1.0 + r)
            scheduler = schedule(state.optimizer)
            trainer = Trainer(state)
            state = hvd.elastic.TorchState(
                state.model, state.optimizer, scheduler=scheduler,
                trainer=trainer, sampler=state.sampler, batch=0, losses=[])
            state.sync()
            for step in range(4):
                train(state)
                scheduler.step()
                state.trainer.steps += 1
                if step == 1:
                    state.save()
            state.restore()
            self.assertIs(state.scheduler, scheduler)
            self.assertIs(scheduler.optimizer, state.optimizer)
            self.assertEqual(scheduler.last_epoch, 2)
            self.assertIs(state.trainer.model, state.model)
            self.assertIs(state.trainer.weight, state.model[0].weight)
            self.assertIs(state.trainer.group, state.optimizer.param_groups[0])
            self.assertEqual(state.trainer.steps, 2)
            if r == 1:
                scheduler.last_epoch, state.trainer.steps = 7, 9
            state.sync()
            train(state)
            scheduler.step()
            self.assertEqual((scheduler.last_epoch, state.trainer.steps), (3, 2))
            self.assertEqual(state.trainer.group["lr"],
                             scheduler.get_last_lr()[0])
            return contents(state)

        schedulers = torch.optim.lr_scheduler
        for schedule in (lambda o: schedulers.StepLR(o, 1, 0.5),
                         lambda o: schedulers.OneCycleLR(o, 1.0, total_steps=9),
                         # torch 1.13: its state has a weak reference to a method, which cannot be copied.
                         lambda o: schedulers.CyclicLR(o, 0.1, 0.5, 2, cycle_momentum=False),
                         lambda o: schedulers.LambdaLR(o, lambda n: 1 / (n + 1))):
            zero, one = self.both(lambda r: rank(r, schedule))
            self.assertEqual(zero, one)

    def test_a_gradient_scaler_forgets_an_interrupted_step(self):
        amp = getattr(torch, "amp", None)
        make = ((lambda: amp.GradScaler("cpu", init_scale=8.0)) if hasattr(amp, "GradScaler") else Scaler)

        def rank(r):
            state = make_state()
            state = hvd.elastic.TorchState(
                state.model, state.optimizer, scaler=make(), sampler=state.sampler, batch=0, losses=[])
            for end in (state.restore, state.sync, lambda: None):
                for p in state.model.parameters():
                    p.grad = torch.full_like(p, 8.0)
                state.scaler.scale(torch.ones(1))
                state.scaler.unscale_(state.optimizer)  # a rank dies before step()
                self.assertEqual(state.model[0].weight.grad.tolist(), [[1.0, 1.0]])
                end()

        self.both(rank)

    def test_a_name_that_a_state_uses_itself_is_refused(self):
        for name in ("commit", "_handlers", "sync"):
            with self.assertRaisesRegex(ValueError, f"{name}=..."):
                hvd.elastic.TorchState(**{name: 1})
            with self.assertRaisesRegex(ValueError, f"{name}=..."):
                hvd.elastic.TorchState(**{name: torch.nn.Linear(1, 1)})

    def test_handlers_of_other_kinds_of_values(self):

        class Average:
            value = 0.0

        class AverageHandler(states.StateHandler):

            def save(self):
                self.saved = self.value.value

            def restore(self):
                self.value.value = self.saved

            def sync(self):
                self.value.value = hvd.broadcast_object(self.value.value)

        before = states.get_handler_registry()
        self.addCleanup(states.set_handler_registry, before)
        states.set_handler_registry(before + [(Average, AverageHandler)])

        def rank(r):
            average = Average()
            average.value = 2.0 + r
            state = hvd.elastic.TorchState(average=average)
            state.sync()
            average.value = 9.0
            state.restore()
            self.assertIs(state.average, average)
            return average.value

        self.assertEqual(self.both(rank), [2.0, 2.0])
        states.set_handler_registry(before)
        self.assertEqual(states.get_handler_registry(), before)


if __name__ == "__main__":
    unittest.main()
