"""send and recv of maypole.torch.distributed: which operations match, and what is kept of those that have ended.

The ranks' library is a few lines here: operations of one name match in their order, and a rank may not submit one of a
name that it has pending.
"""

import collections
import contextlib
import importlib
import os
import queue
import random
import sys
import threading
import time
import types
import unittest
from unittest import mock

import torch

import fake_library
from maypole import _native
from maypole.common import operations, process_sets
from maypole.torch import _submissions

_native.use(fake_library.FakeLibrary(1))


# Not its package's own module, which needs a newer torch than a distribution may have.
_package = types.ModuleType("maypole.torch.distributed")
_package.__path__ = [os.path.join(os.path.dirname(_submissions.__file__), "distributed")]
with mock.patch.dict(sys.modules, {_package.__name__: _package}):
    point_to_point = importlib.import_module("maypole.torch.distributed._point_to_point")


class Operation:
    """An operation of one rank; a Pending for its user."""

    def __init__(self, ranks, value=None):
        self.ranks = ranks
        self.value = value
        self.ended = threading.Event()
        self._call = None

    def end(self):
        self.ended.set()
        if self._call is not None:
            self.ranks.calls.put(self._call)

    def call_when_done(self, function):
        with self.ranks.lock:
            assert self._call is None, "an operation takes one callback"
            self._call = function
            if self.ended.is_set():
                self.ranks.calls.put(function)

    def done(self):
        return self.ended.is_set()

    def wait(self):
        assert self.ended.wait(30)
        return self.value

    def wait_until(self, deadline, comes_back=False):
        return None if self.ended.wait(max(0, deadline - time.monotonic())) else "it is pending"


class Ranks:
    """What two ranks submit, and the thread that calls back."""

    def __init__(self):
        self.lock = threading.RLock()
        self.calls = queue.Queue()
        self.pending = collections.defaultdict(dict)  # by name and rank
        self.requests = []
        self.most_pending = 0
        self.refuses = False
        self.rank = 0  # the one that starts an operation
        threading.Thread(target=self._call_back, daemon=True).start()

    def _call_back(self):
        while True:
            self.calls.get()()

    def run_all(self):
        """Returns when there is nothing left to call."""
        done = threading.Event()
        self.calls.put(done.set)
        assert done.wait(30)

    def start_of_members(self, ranks):
        self.requests.append(Operation(self, 7))
        return self.requests[-1]

    def start(self, described):
        tensor, root, name, _ = described
        with self.lock:
            if self.refuses:
                raise ValueError("this rank has left")
            submitted = self.pending[name]
            rank = root if tensor.sends else 1 - root
            if rank in submitted:
                raise ValueError(f"'{name}' is pending")
            submitted[rank] = operation = Operation(self, tensor)
            self.most_pending = max(self.most_pending, sum(rank in both for both in self.pending.values()))
            if len(submitted) == 2:
                del self.pending[name]
                submitted[1 - root].value.copy_(submitted[root].value)
                for one in submitted.values():
                    one.end()
            return operation


class Sides:
    """Rank 0, which sends, and rank 1, which receives."""

    def __init__(self, test, there=True):
        self.ranks = Ranks()
        for target, name, new in ((process_sets, "start_of_members", self.ranks.start_of_members),
                                  (operations, "start", self.ranks.start),
                                  (_submissions, "broadcast", lambda t, root, name, *rest: (t, root, name, rest))):
            patch = mock.patch.object(target, name, new)
            patch.start()
            test.addCleanup(patch.stop)
        offers = mock.Mock()  # nobody receives from any rank
        self.sender = point_to_point.PointToPoint("world", "world", [0, 1], 0, offers)
        self.receiver = point_to_point.PointToPoint("world", "world", [0, 1], 1, offers)
        if there:
            self.open()

    def open(self):
        self.send(0, 3).done(), self.receive(3)[1].done()
        for request in self.ranks.requests:
            request.end()
        self.ranks.run_all()

    def send(self, value, tag):
        tensor = _Tensor(torch.tensor([value]), True)
        return self.sender.send(tensor, 1, tag)

    def receive(self, tag):
        tensor = _Tensor(torch.tensor([-1]), False)
        return tensor, self.receiver.receive(tensor, 0, tag)


class _Tensor:
    """A tensor, and which side's it is."""

    device = "cuda:0"

    def __init__(self, tensor, sends, is_cuda=False):
        self.tensor = tensor
        self.sends = sends
        self.is_cuda = is_cuda

    def detach(self):
        return self

    def view(self, _):
        return self

    def copy_(self, other):
        self.tensor.copy_(other.tensor)


class PointToPointTest(unittest.TestCase):

    def test_of_endless_tags_nothing_is_kept(self):
        sides = Sides(self)
        for tag in range(5000):
            sent, (got, received) = sides.send(tag, tag), sides.receive(tag)
            sent.wait(), received.wait()
            self.assertEqual(got.tensor.item(), tag)
        sides.ranks.run_all()
        for side in (sides.sender, sides.receiver):
            kept = sum(len(value) for value in vars(side).values() if isinstance(value, dict))
            self.assertLess(kept, 300)

    def test_each_tag_matches_in_its_own_order(self):
        for seed in range(20):
            rng = random.Random(seed)
            sides = Sides(self, there=rng.random() < 0.5)
            tags = [rng.choice((0, 1, 255, 256, 257, -1, 1 << 40)) for _ in range(200)]
            sends, receives = list(enumerate(tags)), list(tags)
            rng.shuffle(sends)
            rng.shuffle(receives)
            values, got, works = collections.defaultdict(list), collections.defaultdict(list), []
            while sends or receives:
                if sends and (not receives or rng.random() < 0.5):
                    value, tag = sends.pop()
                    values[tag].append(value)
                    works.append(sides.send(value, tag))
                else:
                    tag = receives.pop()
                    tensor, work = sides.receive(tag)
                    got[tag].append(tensor)
                    works.append(work)
                if rng.random() < 0.05 and len(sides.ranks.requests) == 2:
                    for request in sides.ranks.requests:
                        request.ended.is_set() or request.end()
            for request in sides.ranks.requests:
                request.ended.is_set() or request.end()
            rng.shuffle(works)
            ended = []
            for work in works:
                work.call_when_done(lambda work=work: ended.append(work))
            for work in works:
                self.assertIsNone(work.wait_until(time.monotonic() + 30))
                work.wait()
                self.assertTrue(work.done())
            sides.ranks.run_all()
            self.assertEqual(len(ended), len(works))
            self.assertEqual({tag: [t.tensor.item() for t in tensors] for tag, tensors in got.items()}, values)

    def test_what_is_behind_another_of_its_tag_says_so(self):
        sides = Sides(self)
        first, second = sides.send(1, 1000), sides.send(2, 1000)
        self.assertFalse(second.done())
        self.assertEqual(first.wait_until(0), "it is pending")
        self.assertEqual(second.wait_until(0),
                         "the operation before it with this tag, 'world.0>1.1000', has not ended")

    def test_another_thread_submits_in_the_order_of_the_callers_stream(self):
        sides = Sides(self, there=False)
        of_thread, used = threading.local(), []

        def current(device=None):
            return getattr(of_thread, "stream", "default")

        @contextlib.contextmanager
        def stream(new):
            of_thread.stream, before = new, current()
            yield
            of_thread.stream = before

        def broadcast(tensor, root, name, *rest):
            used.append(current())
            return tensor, root, name, rest

        for target, name, new in ((torch.cuda, "stream", stream), (torch.cuda, "current_stream", current),
                                  (_submissions, "broadcast", broadcast)):
            patch = mock.patch.object(target, name, new)
            patch.start()
            self.addCleanup(patch.stop)
        with stream("mine"):
            for tag in (3, 1000, 1000):
                sides.sender.send(_Tensor(torch.tensor([1]), True, is_cuda=True), 1, tag)
        sides.ranks.requests[0].end()
        sides.ranks.run_all()
        sides.ranks.pending.pop("world.0>1.1000")[0].end()
        sides.ranks.run_all()
        self.assertEqual(used, ["mine"] * 3)

    def test_what_cannot_be_submitted_fails_and_so_does_what_is_behind_it(self):
        sides = Sides(self)
        works = [sides.send(i, 1000) for i in range(3000)]
        ended = []
        works[-1].call_when_done(lambda: ended.append(True))
        sides.ranks.refuses = True
        for operation in sides.ranks.pending["world.0>1.1000"].values():
            operation.end()
        for work in works[1:]:
            with self.assertRaisesRegex(ValueError, "has left"):
                work.wait()
        sides.ranks.run_all()
        self.assertEqual(ended, [True])
        with self.assertRaisesRegex(ValueError, "has left"):
            sides.send(0, 1000).wait()


if __name__ == "__main__":
    unittest.main()
