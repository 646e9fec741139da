"""Faults of ranks and executors while data travels between the nodes over UCX, with the same bounds as over TCP."""

import dataclasses

import daemon_faults
import pypi_torch
import rank_faults

NAMES = ("rank-exception-submit", "rank-sigkill-submit", "rank-sigkill-compute", "rank-sigkill-wait", "rank-shutdown-compute",
         "rank-sigstop-submit", "executor-sigkill")

FAULTS = [dataclasses.replace(fault, name="ucx-" + fault.name, topic="ucx", layouts=("2x2",), long_layouts=(), times=5,
                              worker_flags=("--network_backend=ucx",), scene="ucx")
          for fault in rank_faults.FAULTS + daemon_faults.FAULTS if fault.name in NAMES]


def available():
    """None, or the reason why there is no UCX."""
    return None if pypi_torch.ucx() else "UCX is not in the cache, and PyPI cannot be reached"
