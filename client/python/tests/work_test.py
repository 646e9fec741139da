"""The streams of a Work of CUDA tensors, without a GPU: stand-ins for tensors and streams note what is asked of them."""

import datetime
import importlib
import os
import sys
import threading
import types
import unittest
from unittest import mock

import torch

import fake_library
from maypole import _native
from maypole.torch import _submissions

_native.use(fake_library.FakeLibrary(1))
# Not its package's own module, which needs a newer torch than a distribution may have.
_package = types.ModuleType("maypole.torch.distributed")
_package.__path__ = [os.path.join(os.path.dirname(_submissions.__file__), "distributed")]
with mock.patch.dict(sys.modules, {_package.__name__: _package}):
    Work = importlib.import_module("maypole.torch.distributed._work").Work

DEVICE = torch.device("cuda", 0)
SECOND = datetime.timedelta(seconds=1)


class Stream:
    """Notes the events that are recorded on it, and those that it waits for."""

    device = DEVICE

    def __init__(self):
        self.recorded, self.awaited = [], []

    def record_event(self):
        self.recorded.append(object())
        return self.recorded[-1]

    def wait_event(self, event):
        self.awaited.append(event)


class Ended:
    """An operation that has ended."""

    def done(self):
        return True

    def wait_until(self, deadline, comes_back=False):
        return None

    def wait(self):
        return None


class WorkTest(unittest.TestCase):

    def setUp(self):
        self.thread = threading.local()
        patch = mock.patch.object(torch.cuda, "current_stream", lambda device: self.thread.stream)
        patch.start()
        self.addCleanup(patch.stop)
        self.used_on = []
        self.tensor = self.of_layout(torch.strided, record_stream=self.used_on.append)
        self.thread.stream = self.mine = Stream()
        self.others = Stream()

    def of_layout(self, layout, **more):
        return types.SimpleNamespace(device=DEVICE, is_cuda=True, layout=layout, is_inference=lambda: False,
                                     numel=lambda: 4, element_size=lambda: 4, **more)

    def work(self):
        return Work("all_reduce", [Ended()], [self.tensor], lambda results: None, SECOND)

    def in_another_thread(self, function):
        def run():
            self.thread.stream = self.others
            function()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    def test_the_stream_that_waits_waits_for_the_one_that_has_written(self):
        work = self.work()
        self.in_another_thread(work.is_completed)
        self.assertEqual(self.used_on, [self.others])
        self.assertEqual(self.mine.awaited, [])
        work.wait()
        self.assertEqual(len(self.others.recorded), 1)
        self.assertEqual(self.mine.awaited, self.others.recorded)

    def test_a_stream_does_not_wait_for_itself(self):
        work = self.work()
        work.wait()
        self.assertEqual(len(self.mine.recorded), 1)
        self.assertEqual(self.mine.awaited, [])

    def test_a_sparse_tensor_which_has_no_streams_ends_well(self):
        self.tensor = self.of_layout(torch.sparse_coo)
        work = self.work()
        self.assertTrue(work.wait())
        self.assertEqual(len(self.mine.recorded), 1)

    def test_several_together(self):
        first, second = self.work(), self.work()
        together = Work.together("two", [first, second], SECOND)
        self.in_another_thread(first.is_completed)
        together.wait()
        self.assertEqual(self.mine.awaited, self.others.recorded)
        self.assertEqual(len(self.others.recorded), 1)


if __name__ == "__main__":
    unittest.main()
