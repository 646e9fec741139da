"""Unnamed files in this machine's memory (memfd_create).

    fd = memfd.create("maypole-state", memfd.ALLOW_SEALING)

Calls the C library, because a Python that was built for glibc before 2.27, such as some of conda's, has
no os.memfd_create().
"""

import ctypes
import os

ALLOW_SEALING = 2
_CLOEXEC = 1


def create(name: str, flags: int = 0) -> int:
    """Returns a descriptor that started programs do not inherit. Raises an OSError that names the call."""
    fd = int(ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), flags | _CLOEXEC))
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "memfd_create")
    return fd
