"""maypole.torch under Horovod's name."""

import importlib as _importlib
from typing import Any

import maypole.torch as _maypole
from maypole.torch import *  # pylint: disable=wildcard-import,unused-wildcard-import

# The line above has brought Maypole's modules of these names; horovod.torch has
# its own, as `import horovod.torch.functions` expects.
for _name in ("compression", "elastic", "functions", "mpi_ops", "optimizer",
              "sync_batch_norm"):
    _importlib.import_module(f"{__name__}.{_name}")


def __getattr__(name: str) -> Any:
    # What Maypole does not have yet says so.
    return getattr(_maypole, name)
