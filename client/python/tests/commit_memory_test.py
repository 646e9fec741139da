"""CommitMemory: what is whole after a death at any moment."""

import ctypes
import fcntl
import os
import unittest
from unittest import mock

from maypole.common import commit_memory
from maypole.common.commit_memory import Commit, CommitMemory

HALF = 3 * 4096


def write(memory, commit, values):
    """A commit whose data are `values`; its description says where they are."""
    half = memory.begin()
    data = bytearray(values)
    address = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
    digest = memory.write(half, 0, address, len(data))
    memory.publish(half, commit, bytearray(b"%d %d" % (len(data), digest)), 8192)
    return half


def read(memory):
    """{commit: values} of the whole commits; checks the digests."""
    found = {}
    for commit, half in memory.commits().items():
        size, digest = map(int, bytes(memory.description(half)).split())
        begin = memory.offset(half, 0)
        found[commit] = memory.memory[begin:begin + size]
        seen = commit_memory._native.library().copy_digest(
            None, memory.address(half, 0), size)
        assert seen == digest
    return found


class CommitMemoryTest(unittest.TestCase):

    def setUp(self):
        self.memory = CommitMemory.create(HALF)

    def reader(self):
        return CommitMemory.attach(os.dup(self.memory.fd))

    def test_the_last_two_commits_are_there(self):
        self.assertEqual(read(self.reader()), {})
        halves = [write(self.memory, Commit(1, n), b"%d" % n) for n in (1, 2, 3)]
        self.assertEqual(halves, [0, 1, 0])
        self.assertEqual(read(self.reader()),
                         {Commit(1, 2): b"2", Commit(1, 3): b"3"})

    def test_a_new_generation_is_later_whatever_its_numbers(self):
        write(self.memory, Commit(1, 9), b"a")
        write(self.memory, Commit(2, 1), b"b")
        write(self.memory, Commit(2, 2), b"c")
        self.assertEqual(set(read(self.reader())), {Commit(2, 1), Commit(2, 2)})

    def test_a_death_at_any_byte_of_a_commit_leaves_the_one_before(self):
        write(self.memory, Commit(1, 1), b"first")
        write(self.memory, Commit(1, 2), b"second")
        half = self.memory.begin()
        whole = {Commit(1, 2): b"second"}
        self.assertEqual(read(self.reader()), whole)
        begin = self.memory.offset(half, 0)
        self.memory.memory[begin:begin + 5] = b"third"
        self.assertEqual(read(self.reader()), whole)
        # The record of the third commit, as it would be written.
        other = CommitMemory.create(HALF)
        write(other, Commit(1, 3), b"third")
        at = commit_memory._RECORDS_AT
        size = commit_memory._RECORD.size + commit_memory._CHECK.size
        record = other.memory[at[0]:at[0] + size]
        self.memory.memory[begin + 8192:begin + HALF] = (
            other.memory[other.offset(0, 8192):other.offset(0, HALF)])
        for written in range(size):
            self.memory.memory[at[half]:at[half] + written] = record[:written]
            self.assertEqual(read(self.reader()), whole, written)
        self.memory.memory[at[half]:at[half] + size] = record
        whole[Commit(1, 3)] = b"third"
        self.assertEqual(read(self.reader()), whole)

    def test_a_description_that_was_overwritten_is_noticed(self):
        half = write(self.memory, Commit(1, 1), b"first")
        reader = self.reader()
        begin = self.memory.offset(half, 8192)
        self.memory.memory[begin:begin + 1] = b"9"
        with self.assertRaisesRegex(ValueError, "overwritten"):
            reader.description(half)

    def test_a_record_that_points_outside_is_none(self):
        half = write(self.memory, Commit(1, 1), b"first")
        with mock.patch.object(self.memory, "half_bytes", 8000):
            self.assertEqual(self.memory.commits(), {})
        self.assertEqual(half, 0)

    def test_a_reader_changes_nothing(self):
        write(self.memory, Commit(1, 1), b"first")
        reader = self.reader()
        begin = reader.offset(0, 0)
        reader.memory[begin:begin + 5] = b"other"
        self.assertEqual(read(self.memory), {Commit(1, 1): b"first"})

    def test_its_size_is_sealed(self):
        for size in (0, 10**6):
            with self.assertRaises(PermissionError):
                os.ftruncate(self.memory.fd, size)

    def test_other_memory_is_refused_and_closed(self):
        before = set(os.listdir("/proc/self/fd"))
        empty = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        with self.assertRaises(ValueError):
            CommitMemory.attach(empty)
        short = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        os.ftruncate(short, 4096)
        fcntl.fcntl(short, commit_memory._F_ADD_SEALS,
                    commit_memory._F_SEAL_SHRINK)
        with self.assertRaises(ValueError):
            CommitMemory.attach(short)
        with self.assertRaises(OSError):
            CommitMemory.attach(os.open("/dev/null", os.O_RDONLY))
        self.assertEqual(set(os.listdir("/proc/self/fd")), before)

    def test_a_python_that_was_built_for_an_old_c_library(self):
        with mock.patch.dict(os.__dict__):
            del os.memfd_create
            memory = CommitMemory.create(HALF)
        write(memory, Commit(1, 1), b"first")
        self.assertEqual(read(memory), {Commit(1, 1): b"first"})
        self.assertFalse(os.get_inheritable(memory.fd))

    def test_a_lack_of_memory_is_an_error(self):
        with mock.patch.object(os, "posix_fallocate",
                               side_effect=OSError(28, "no space")):
            with self.assertRaises(OSError):
                self.memory.begin()
            with self.assertRaises(OSError):
                CommitMemory.create(HALF)
        write(self.memory, Commit(1, 1), b"first")
        self.assertEqual(read(self.reader()), {Commit(1, 1): b"first"})


if __name__ == "__main__":
    unittest.main()
