"""Jobs whose ranks have a fake GPU: libcuda.so.1 of tests/gpu/fake."""

import ctypes
import json
import os
import shutil
import subprocess
import tempfile

import harness

DIRECTORY = os.path.join(harness.ROOT, "tests/gpu/fake")
PROGRAMS = os.path.join(harness.ROOT, "tests/gpu/programs")
MEMORY = 256 << 20
FAKE_NCCL = os.path.join(harness.ROOT, "tests/gpu/fake_nccl/libnccl.so.2")
# How long others may take to see a death: of a rank; of an executor, if they are
# on another node (--resume_timeout, 3 s).
RANK_SECONDS, EXECUTOR_SECONDS = 1.0, 4.5


class Job(harness.Job):
    """A harness.Job on one fake GPU, whose memory all ranks share.

    fake: more of MAYPOLE_FAKE_CUDA (tests/gpu/fake/config.h). driver: the
    directory of another libcuda.so.1; None: there is none. nccl: a libnccl.so.2;
    by default the executors do without.
    """

    def __init__(self, np, program, args=(), fake="", driver=DIRECTORY, nccl="none", env=None,
                 **options):
        self.state = tempfile.mkdtemp(prefix="mpg", dir="/tmp")
        self.fake = "memory=%d,state=%s%s" % (MEMORY, self.state, "," + fake if fake else "")
        extra = {"MAYPOLE_FAKE_CUDA": self.fake, "MAYPOLE_NCCL_LIBRARY": nccl, "MAYPOLE_GPU_HOST_BYTES": "0"}
        if driver is not None:
            extra["LD_LIBRARY_PATH"] = driver
        extra.update(env or {})
        command = [harness.PYTHON, os.path.join(PROGRAMS, program)] + [str(a) for a in args]
        super().__init__(np, command=command, env=extra, **options)

    def stop(self):
        super().stop()
        shutil.rmtree(self.state, ignore_errors=True)

    def total_bytes(self):
        return MEMORY

    def free_bytes(self):
        """Free memory of the GPU, as another process sees it."""
        code = ("import sys; sys.path.insert(0, %r)\nimport device\nprint(device.Gpu().free_bytes())" % PROGRAMS)
        env = harness.environment({"LD_LIBRARY_PATH": DIRECTORY, "MAYPOLE_FAKE_CUDA": self.fake})
        return int(subprocess.check_output([harness.PYTHON, "-c", code], env=env, text=True))
