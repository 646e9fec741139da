"""The names that the modules of all frameworks have: maypole.torch, maypole.tensorflow, maypole.keras, ..."""

from maypole.common.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from maypole.common.constants import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from maypole.common.exceptions import (
    HorovodInternalError,
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
    MaypoleError,
)
from maypole.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from maypole.common.timeline import start_timeline, stop_timeline

__all__ = [
    "Adasum", "Average", "HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt", "MaypoleError",
    "Max", "Min", "ProcessSet", "Product", "ReduceOp", "Sum", "add_process_set", "ccl_built", "cross_rank",
    "cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "init",
    "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "remove_process_set", "rocm_built", "shutdown", "size",
    "start_timeline", "stop_timeline",
]
