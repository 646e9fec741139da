"""maypole.torch under Horovod's name."""

import importlib as _importlib

from maypole.torch import *  # pylint: disable=wildcard-import,unused-wildcard-import

# The line above has brought Maypole's modules of these names; horovod.torch has
# its own, as `import horovod.torch.functions` expects.
for _name in ("compression", "elastic", "functions", "mpi_ops", "optimizer",
              "sync_batch_norm"):
    _importlib.import_module(f"{__name__}.{_name}")
