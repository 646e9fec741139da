"""CommitMemory: memory that holds this process's commits, and survives the process.

    memory = CommitMemory.create(half_bytes)
    half = memory.begin()                   # drops the older commit
    digest = memory.write(half, 0, address, size)
    memory.publish(half, Commit(1, 7), description)
    library.keep_state("state", memory.fd)  # the executor holds it from now on

    memory = CommitMemory.attach(fd)        # in another process
    memory.commits()                        # {Commit(1, 7): 0}

It is a memfd of fixed size (executor and readers rely on its seals):

    page 0   magic, bytes of a half; two records, one for each half
    half 0   data at the offsets that the writer chooses, then the description
    half 1   the same

    record   generation, number, offset and bytes of the description, its digest,
             CRC-32 of these

A record is published last and withdrawn first, and the halves alternate. So
whenever the writer dies, even in the middle of a store, at least one of its
last two commits is complete, and each record that commits() returns describes a
complete commit.

Digests are those of the library's copy_digest(). Pages are reserved before they
are written: a lack of memory is an OSError, not a SIGBUS.

Thread contract: one writer, in one thread. Readers may be other processes. The
callers must make sure that the writer does not begin a commit in the half that
is being read (readers would detect it by the digests).
"""

import ctypes
import fcntl
import mmap
import os
import struct
import zlib
from typing import NamedTuple, Optional

from maypole import _native
from maypole.common import memfd

_MAGIC = b"MAYSTAT1"
_HEAD = struct.Struct("=8sQ")
_RECORD = struct.Struct("=QQQQQ")
_CHECK = struct.Struct("=L")
_RECORDS_AT = (64, 128)
_PAGE = mmap.PAGESIZE
# At a signal the kernel gives back everything that one call has reserved.
_RESERVED_AT_ONCE = 1 << 20

# Linux's values; the module fcntl has them only from Python 3.9 on, and not everywhere.
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4

# Alignment of data for cache lines and vector registers.
ALIGNMENT = 64


class Commit(NamedTuple):
    """A commit of the job, the same on all ranks. Later ones are greater.

    generation: changes with the job's membership epoch. number: the commit's number in that epoch.
    """

    generation: int
    number: int


class CommitMemory:
    """See the head of this file."""

    def __init__(self, fd: int, half_bytes: int, access: int):
        self.fd = fd
        self.half_bytes = half_bytes
        # Tensors on this memory keep it mapped; it is never closed explicitly.
        self.memory = mmap.mmap(fd, _PAGE + 2 * half_bytes, access=access)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._reserved = [False, False]

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)

    @classmethod
    def create(cls, half_bytes: int) -> "CommitMemory":
        """Makes a CommitMemory. Raises OSError."""
        half_bytes = -(-half_bytes // _PAGE) * _PAGE
        fd = memfd.create("maypole-state", memfd.ALLOW_SEALING)
        try:
            os.ftruncate(fd, _PAGE + 2 * half_bytes)
            fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
            _reserve(fd, 0, _PAGE)
            os.pwrite(fd, _HEAD.pack(_MAGIC, half_bytes), 0)
            return cls(fd, half_bytes, mmap.ACCESS_WRITE)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> "CommitMemory":
        """Maps memory of another process for reading, and takes ownership of `fd`.

        Raises ValueError or OSError if it is not a CommitMemory's.
        """
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
            magic, half_bytes = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
            if (not seals & _F_SEAL_SHRINK or magic != _MAGIC
                    or _PAGE + 2 * half_bytes != os.fstat(fd).st_size):
                raise ValueError("this is not memory of a CommitMemory")
            # ACCESS_COPY, because a buffer must be writable; pages that are not written are not copied.
            return cls(fd, half_bytes, mmap.ACCESS_COPY)
        except struct.error as error:
            os.close(fd)
            raise ValueError("this is not memory of a CommitMemory") from error
        except BaseException:
            os.close(fd)
            raise

    # --- Writing --------------------------------------------------------------

    def begin(self) -> int:
        """Returns the half for the next commit. Raises OSError."""
        commits = self.commits()
        half = 1 - commits[max(commits)] if commits else 0
        at = _RECORDS_AT[half]
        self.memory[at:at + _RECORD.size] = bytes(_RECORD.size)
        if not self._reserved[half]:
            begin = self.offset(half, 0)
            _reserve(self.fd, begin, begin + self.half_bytes)
            self._reserved[half] = True
        return half

    def write(self, half: int, at: int, address: int, size: int) -> int:
        """Copies `size` bytes from `address`; returns their digest."""
        return _native.library().copy_digest(self.address(half, at), address,
                                             size)

    def publish(self, half: int, commit: Commit, description: bytearray,
                at: int) -> None:
        """Publishes the commit, which must be complete, with `description` at `at`, after the data."""
        size = len(description)
        digest = self.write(half, at, _address_of(description), size)
        record = _RECORD.pack(commit.generation, commit.number, at, size,
                              digest)
        where = _RECORDS_AT[half]
        self.memory[where:where + _RECORD.size + _CHECK.size] = (
            record + _CHECK.pack(zlib.crc32(record)))

    # --- Reading --------------------------------------------------------------

    def commits(self) -> dict[Commit, int]:
        """Returns the complete commits, and the half of each."""
        found = {}
        for half in (0, 1):
            record = self._record(half)
            if record is not None:
                found[Commit(record[0], record[1])] = half
        return found

    def description(self, half: int) -> memoryview:
        """Returns the description of the half's commit. Raises ValueError if it is not the one that was published."""
        record = self._record(half)
        if record is None:
            raise ValueError("the commit is not whole")
        _, _, at, size, digest = record
        begin = self.offset(half, at)
        seen = _native.library().copy_digest(None, self.address(half, at), size)
        if seen != digest:
            raise ValueError("the commit was overwritten")
        return memoryview(self.memory)[begin:begin + size]

    def offset(self, half: int, at: int) -> int:
        """The position in `memory` of offset `at` of the half."""
        return _PAGE + half * self.half_bytes + at

    def address(self, half: int, at: int) -> int:
        """The address in this process of byte `at` of this half."""
        return self._base + self.offset(half, at)

    def _record(self, half: int) -> Optional[tuple[int, ...]]:
        where = _RECORDS_AT[half]
        record = self.memory[where:where + _RECORD.size]
        (check,) = _CHECK.unpack_from(self.memory, where + _RECORD.size)
        values = _RECORD.unpack(record)
        if not any(values) or zlib.crc32(record) != check:
            return None
        _, _, at, size, _ = values
        return values if at + size <= self.half_bytes else None


def _reserve(fd: int, begin: int, end: int) -> None:
    while begin < end:
        size = min(_RESERVED_AT_ONCE, end - begin)
        os.posix_fallocate(fd, begin, size)
        begin += size


def _address_of(data: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
