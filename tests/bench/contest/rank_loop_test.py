"""The Python rank of a contestant, with a conductor and a peer in the test."""

import os
import shutil
import socket
import tempfile
import threading
import unittest
from unittest import mock

import torch

from contest import rank_loop
from pattern import Pattern


class FakeReducer:
    """Rank 1 of 2 with a fake peer: adds the values that the peer would have."""

    rank, size = 1, 2
    storages = ("private",)

    def __init__(self):
        self.round = None
        self.operations = 0
        self.spoil = None

    def arena_operations(self):
        return self.operations // 3  # every third

    def make(self, storage, shapes):
        return [torch.empty(shape) for shape in shapes]

    def allreduce(self, names, tensors):
        if self.operations % 3 == 0:
            other = torch.empty_like(tensors[0])
            Pattern(2).fill(0, self.round + self.operations // 3, 0, other)
            tensors[0] += other
        else:
            tensors[0] *= 2
        self.operations += 1
        if self.spoil is not None:
            self.spoil(tensors[0])


class RankLoopTest(unittest.TestCase):

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mpb", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        line = os.path.join(self.dir, "line")
        with open(line, "wb") as f:
            # The peer, rank 0, has always arrived.
            f.write((1 << 60).to_bytes(8, "little") + bytes(4088))
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(self.listener.close)
        path = os.path.join(self.dir, "socket")
        self.listener.bind(path)
        self.listener.listen(1)
        self.reducer = FakeReducer()
        self.error = None
        with mock.patch.dict(os.environ, BENCH_CONTESTANT="fake",
                             BENCH_CONDUCTOR=path, BENCH_START_LINE=line):
            contest = rank_loop.Contest(self.reducer)
        self.conductor, _ = self.listener.accept()
        self.thread = threading.Thread(target=self._run, args=(contest,))
        self.thread.start()
        self.addCleanup(self.thread.join)
        self.addCleanup(self.conductor.close)

    def _run(self, contest):
        try:
            contest.run()
        except rank_loop.WrongResult as e:
            self.error = e

    def ask(self, line):
        self.conductor.send(line.encode())
        return self.conductor.recv(4096).decode()

    def test_a_turn_is_its_rounds_and_their_operations(self):
        self.assertEqual(self.conductor.recv(4096).decode(),
                         f"hello fake 1 {os.getpid()} private")
        self.reducer.round = 40
        self.assertEqual(self.ask("open 0 1KiB private 3"), "ok")
        words = self.ask("turn 0 40 1 2").split()
        self.assertEqual((words[0], len(words)), ("times", 3))
        self.assertEqual(self.reducer.operations, 9)
        self.assertEqual(self.ask("close 0"), "closed 9 3")
        self.assertEqual(self.ask("quit"), "ok")
        self.thread.join()
        self.assertIsNone(self.error)

    def test_a_wrong_element_ends_it(self):
        self.conductor.recv(4096)
        self.reducer.round = 7

        def spoil(tensor):
            if self.reducer.operations == 2:
                tensor[200] += 1

        self.reducer.spoil = spoil
        self.ask("open 0 1KiB private 3")
        self.assertRegex(
            self.ask("turn 0 7 0 1"),
            "^error wrong result: tensor private.1KiB.0, round 7, index 200 of "
            "256: got ")
        self.thread.join()
        self.assertIsNotNone(self.error)


if __name__ == "__main__":
    unittest.main()
