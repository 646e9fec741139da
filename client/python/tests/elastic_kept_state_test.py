"""TorchState(keep=True): who gets which commit from where.

Ranks are threads; each is on a node of its own unless a test says otherwise. A
new TorchState stands for a new process.
"""

import ctypes
import os
import unittest
import zlib
from unittest import mock

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
# pylint: disable=wrong-import-position
import maypole.torch as hvd
from maypole.common.commit_memory import Commit
from maypole.torch.elastic import state as states


class FakeWithExecutors(fake_library.FakeLibrary):
    """It also keeps states, for each node."""

    def __init__(self, nodes):
        super().__init__(len(nodes))
        self.nodes = nodes  # of the ranks
        self.executors = {node: {} for node in nodes}
        self.refusal = None
        self.kept = 0

    def local_rank(self):
        return self.nodes[:self.rank()].count(self.nodes[self.rank()])

    def _executor(self):
        return self.executors[self.nodes[self.rank()]]

    def keep_state(self, name, fd):
        if self.refusal is not None:
            raise self.refusal
        self.kept += 1
        self._executor()[name] = os.dup(fd)

    def find_state(self, name):
        fd = self._executor().get(name)
        return None if fd is None else os.dup(fd)

    def drop_state(self, name):
        self._executor().pop(name, None)

    def copy_digest(self, to, source, size):
        if to is not None:
            ctypes.memmove(to, source, size)
        data = (ctypes.c_char * size).from_address(source)
        return zlib.crc32(data) + size


class Registry(dict):
    """All ranks are in this process, each with a state of the same name."""

    def __contains__(self, name):
        return False


def make_state(scale, width=3, **values):
    model = torch.nn.Sequential(torch.nn.Linear(width, 1),
                                torch.nn.BatchNorm1d(1))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    values = {"batch": 0, "losses": [], **values}
    return hvd.elastic.TorchState(model, optimizer, keep=True, sampler=sampler,
                                  **values)


def train(state, times=1):
    for _ in range(times):
        state.optimizer.zero_grad()
        x = torch.tensor([[1.0, 2.0, 0.5], [3.0, -1.0, 0.0]])
        (state.model(x)**2).mean().backward()
        state.optimizer.step()
        state.sampler.record_batch(state.batch, 1)
        state.batch += 1
        state.losses.append(state.batch)


def contents(state):
    optimizer = state.optimizer.state_dict()
    return ({k: v.tolist() for k, v in state.model.state_dict().items()},
            [{k: v.tolist() if torch.is_tensor(v) else v
              for k, v in entry.items()}
             for entry in optimizer["state"].values()],
            optimizer["param_groups"], state.sampler.state_dict(), state.batch,
            list(state.losses))


def bytes_of(state):
    """Of model and optimizer."""
    tensors = list(state.model.state_dict().values())
    for entry in state.optimizer.state_dict()["state"].values():
        tensors += [v for v in entry.values() if torch.is_tensor(v)]
    return sum(t.numel() * t.element_size() for t in tensors)


class KeptStateTest(unittest.TestCase):

    def setUp(self):
        for patch in (mock.patch.dict(os.environ, MAYPOLE_ELASTIC="1"),
                      mock.patch.object(states, "_kept", Registry())):
            patch.start()
            self.addCleanup(patch.stop)
        self.use("a", "b")

    def use(self, *nodes):
        self.fake = FakeWithExecutors(list(nodes))
        _native.use(self.fake)

    def ranks(self, function):
        return fake_library.run_ranks(self.fake, function)

    def trained(self, r, steps=2):
        """A state in the middle of training, right after a commit."""
        state = make_state(1.0 + r)
        state.sync()
        train(state, steps)
        state.save()
        return state

    def test_a_commit_is_restored_any_number_of_times(self):

        def rank(r):
            state = self.trained(r)
            saved = contents(state)
            for _ in range(2):
                train(state)
                self.assertNotEqual(contents(state), saved)
                state.restore()
                self.assertEqual(contents(state), saved)
            train(state)
            state.save()
            self.assertNotEqual(contents(state), saved)
            return contents(state)

        zero, one = self.ranks(rank)
        self.assertEqual(zero, one)

    def test_the_first_rank_of_a_node_has_its_only_copy_in_that_memory(self):
        self.use("a", "a", "b")
        states_ = self.ranks(self.trained)
        private = [[h._saved is not None for _, h in
                    s._of_kind(states.TensorsHandler)] for s in states_]
        self.assertEqual(private, [[False, False], [True, True],
                                   [False, False]])
        self.assertEqual(self.fake.kept, 2)  # once for each node

    def test_a_new_process_gets_it_from_its_executor(self):

        def rank(r):
            state = self.trained(r)
            # Rank 1 is a new process now.
            if r == 1:
                state = make_state(9.0)
            before = state.broadcast_bytes
            state.sync()
            return (contents(state), state.restored_bytes,
                    state.broadcast_bytes - before, bytes_of(state))

        zero, one = self.ranks(rank)
        self.assertEqual(zero[0], one[0])
        self.assertEqual(zero[1:3], (0, 0))
        self.assertEqual(one[1:3], (one[3], 0))
        self.assertEqual(one[0][4:], (2, [1, 2]))

    def test_all_processes_are_new(self):

        def rank(r):
            saved = contents(self.trained(r))
            state = make_state(9.0)
            before = state.broadcast_bytes
            state.sync()
            self.assertEqual(contents(state), saved)
            self.assertGreater(state.restored_bytes, 0)
            return state.broadcast_bytes - before

        self.assertEqual(self.ranks(rank), [0, 0])

    def test_a_node_that_has_lost_its_executor_gets_it_from_its_neighbour(self):

        def rank(r):
            saved = contents(self.trained(r))
            hvd.broadcast_object(0)  # both have committed
            if r == 0:
                self.fake.executors["a"].clear()
            state = make_state(9.0)
            state.sync()
            self.assertEqual(contents(state), saved)
            return state.restored_bytes > 0, state.broadcast_bytes, bytes_of(
                state)

        zero, one = self.ranks(rank)
        self.assertEqual((zero[0], one[0]), (False, True))
        self.assertEqual(zero[1], zero[2])

    def test_the_newest_commit_counts_on_all_nodes(self):
        """Rank 0 has died in the middle of a commit that rank 1 has finished."""

        def rank(r):
            state = self.trained(r)
            train(state)
            if r == 1:
                state.save()
                saved = contents(state)
            state = make_state(9.0)
            state.sync()
            if r == 1:
                self.assertEqual(contents(state), saved)
            return contents(state), state._keeper.commit

        zero, one = self.ranks(rank)
        self.assertEqual(zero, one)
        self.assertEqual(zero[0][4], 3)
        self.assertEqual(zero[1], Commit(2, 1))

    def test_a_commit_that_the_survivors_do_not_have_is_not_used(self):
        """Rank 1 has died after a commit that rank 0 has not finished."""

        def rank(r):
            state = self.trained(r)
            saved = contents(state)
            train(state)
            if r == 0:
                state.restore()
            else:
                state.save()
                state = make_state(9.0)
            before = state.broadcast_bytes
            state.sync()
            self.assertEqual(contents(state), saved)
            return state.broadcast_bytes - before

        # Its other half has the right one.
        self.assertEqual(self.ranks(rank), [0, 0])

    def test_what_differs_between_ranks_is_broadcast_alone(self):

        def rank(r):
            state = make_state(1.0)
            state.sync()
            train(state)
            state.model[1].running_mean.fill_(r)  # as with other samples
            state.save()
            if r == 1:
                state = make_state(9.0)
            before = state.broadcast_bytes
            state.sync()
            return contents(state), state.broadcast_bytes - before

        zero, one = self.ranks(rank)
        self.assertEqual(zero, one)
        self.assertEqual(zero[0][0]["1.running_mean"], [0.0])
        self.assertEqual((zero[1], one[1]), (4, 4))

    def test_current_values_of_rank_0_count_not_its_commit(self):

        def rank(r):
            state = self.trained(r)
            if r == 0:  # a reset callback, say
                state.optimizer.param_groups[0]["lr"] = 0.7
                with torch.no_grad():
                    state.model[0].bias.fill_(5.0)
            else:
                state = make_state(9.0)
            state.sync()
            return contents(state)

        zero, one = self.ranks(rank)
        self.assertEqual(zero, one)
        self.assertEqual(one[2][0]["lr"], 0.7)
        self.assertEqual(one[0]["0.bias"], [5.0])

    def test_memory_that_is_damaged_is_not_used(self):

        def rank(r):
            state = self.trained(r)
            saved = contents(state)
            if r == 1:
                memory = state._keeper._memory
                for half in memory.commits().values():
                    at = memory.offset(half, 0)
                    memory.memory[at] ^= 1
                state = make_state(9.0)
            before = state.broadcast_bytes
            with self.assertLogs("maypole.elastic") if r == 1 else mock.MagicMock():
                state.sync()
            self.assertEqual(contents(state), saved)
            return state.broadcast_bytes - before == bytes_of(state)

        self.assertEqual(self.ranks(rank), [True, True])

    def test_what_a_failed_sync_has_loaded_is_forgotten(self):

        def rank(r):
            state = self.trained(r)
            if r == 1:
                state = make_state(9.0)
                state._load_rest(state._keeper.load_newest())
                state.restore()  # after an error in sync()
                self.fake.executors["b"].clear()  # it has died, too
            state.sync()
            return contents(state)

        zero, one = self.ranks(rank)
        self.assertEqual(zero, one)

    def test_a_state_of_another_script_is_an_error(self):
        self.use("a")
        self.ranks(self.trained)
        with self.assertRaisesRegex(
                ValueError, r"does not fit 'model' here: it has 0.weight: "
                r"torch.float32 \[1, 3\] \(cpu\), this process has "
                r"0.weight: torch.float32 \[1, 4\]"):
            make_state(1.0, width=4).sync()

    def test_an_executor_that_keeps_nothing_does_not_stop_the_training(self):
        self.use("a")
        self.fake.refusal = _native.StatusError(_native.RESOURCE_EXHAUSTED,
                                                "raise --state_bytes")
        state = make_state(1.0)
        with self.assertLogs("maypole.elastic", "WARNING") as log:
            state.sync()
        self.assertIn("raise --state_bytes", log.output[0])
        train(state)
        state.save()
        saved = contents(state)
        train(state)
        state.restore()
        self.assertEqual(contents(state), saved)
        self.assertEqual(self.fake.executors, {"a": {}})

    def test_a_refused_commit_leaves_no_older_one_behind(self):
        self.use("a")
        state = self.ranks(self.trained)[0]
        self.fake.refusal = _native.StatusError(_native.RESOURCE_EXHAUSTED,
                                                "raise --state_bytes")
        state.losses = list(range(10**6))  # needs more memory
        with self.assertLogs("maypole.elastic", "WARNING"):
            state.save()
        self.assertEqual(self.fake.executors, {"a": {}})

    def test_an_executor_that_is_being_replaced_gets_it_in_the_next_epoch(self):
        self.use("a")
        state = make_state(1.0)
        self.fake.refusal = _native.StatusError(_native.UNAVAILABLE, "died")
        state.sync()
        self.fake.refusal = None
        state.save()
        self.assertIn("state", self.fake.executors["a"])

    def test_a_state_that_grows_gets_new_memory(self):
        self.use("a")
        state = make_state(1.0)
        state.sync()
        first = state._keeper._memory
        state.losses = list(range(10**6))
        state.save()
        self.assertIsNot(state._keeper._memory, first)
        new = make_state(9.0)
        new.sync()
        self.assertEqual(new.losses, list(range(10**6)))

    def test_a_finished_training_leaves_nothing(self):
        self.use("a")
        state = self.ranks(self.trained)[0]
        self.assertIn("state", self.fake.executors["a"])
        state.on_finished()
        self.assertEqual(self.fake.executors["a"], {})

    def test_a_second_sync_takes_the_current_values_too(self):
        self.use("a")
        state = self.ranks(self.trained)[0]
        train(state)
        now = contents(state)
        state.sync()
        self.assertEqual(contents(state), now)

    def test_without_elastic_ranks_nothing_is_kept(self):
        with mock.patch.dict(os.environ, MAYPOLE_ELASTIC="0"):
            states_ = self.ranks(self.trained)
        self.assertEqual(self.fake.kept, 0)
        self.assertEqual(contents(states_[0]), contents(states_[1]))

    def test_two_states_need_two_names(self):
        with mock.patch.object(states, "_kept", {}):
            first = hvd.elastic.TorchState(keep=True)
            with self.assertRaisesRegex(ValueError, "keep='name'"):
                hvd.elastic.TorchState(keep=True)
            second = hvd.elastic.TorchState(keep="other")
        self.assertEqual((first._keeper.name, second._keeper.name),
                         ("state", "other"))

    def test_memory_formats(self):
        """Tensors that are no flat memory, and empty ones."""
        self.use("a")

        class Model(torch.nn.Module):

            def __init__(self, scale):
                super().__init__()
                values = torch.arange(24.0).view(1, 2, 3, 4) * scale
                self.conv = torch.nn.Parameter(
                    values.to(memory_format=torch.channels_last))
                self.register_buffer("short", torch.ones(3).bfloat16() * scale)
                self.register_buffer("empty", torch.zeros(0, 3))
                self.register_buffer("flag", torch.tensor(scale > 1))

        state = hvd.elastic.TorchState(Model(2.0), keep=True)
        state.sync()
        new = hvd.elastic.TorchState(Model(1.0), keep=True)
        new.sync()
        for a, b in zip(state.model.state_dict().values(),
                        new.model.state_dict().values()):
            self.assertTrue(torch.equal(a, b))
        self.assertEqual(new.model.conv.stride(), state.model.conv.stride())


if __name__ == "__main__":
    unittest.main()
