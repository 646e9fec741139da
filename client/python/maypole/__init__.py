"""Maypole: distributed data-parallel training with Horovod's interface.

Import the module of your framework: `import maypole.torch as hvd`.
Without a framework, `import maypole as hvd` has the same functions for NumPy
arrays and objects with __dlpack__: see maypole.arrays and docs/arrays.md.
`maypole.run(function, np=2)` runs a function in each rank of a new job, and
raises `maypole.RankError` if one fails. `python3 -m maypole` prints the version
and the path of the library.
"""

import importlib
from typing import Any

# Each name's module; nothing is loaded before it is needed.
_MODULES: dict[str, str] = {
    name: module
    for module, names in {
        "maypole.runner":
            "RankError run",
        "maypole.common.basics":
            """ccl_built cross_rank cross_size cuda_built ddl_built gloo_built
            gloo_enabled init is_homogeneous is_initialized local_rank
            local_size mpi_built mpi_enabled mpi_threads_supported nccl_built
            rank rocm_built shutdown size""",
        "maypole.common.constants":
            "Adasum Average Max Min Product Sum",
        "maypole.common.exceptions":
            """HorovodInternalError HorovodVersionMismatchError
            HostsUpdatedInterrupt MaypoleError""",
        "maypole.common.process_sets":
            """ProcessSet add_process_set global_process_set
            remove_process_set""",
        "maypole.common.timeline":
            "start_timeline stop_timeline",
        "maypole.common.objects":
            "allgather_object broadcast_object",
        "maypole.common.collectives":
            "barrier join",
        "maypole.common.operations":
            "poll synchronize",
        "maypole.arrays":
            """allgather allgather_async allreduce allreduce_ allreduce_async
            allreduce_async_ alltoall alltoall_async broadcast broadcast_
            broadcast_async broadcast_async_ grouped_allgather
            grouped_allgather_async grouped_allreduce grouped_allreduce_
            grouped_allreduce_async grouped_allreduce_async_
            grouped_reducescatter grouped_reducescatter_async reducescatter
            reducescatter_async""",
    }.items() for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if name == "elastic":
        return importlib.import_module("maypole.elastic")
    if name == "__version__":  # only the library knows it
        from maypole import _native
        return _native.library().version()
    raise AttributeError(f"module 'maypole' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, "__version__", "elastic"])
