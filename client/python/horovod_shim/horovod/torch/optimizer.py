"""DistributedOptimizer, and the classes of what it returns."""

from maypole.torch.adasum_optimizer import (
    DistributedAdasumOptimizer as _DistributedAdasumOptimizer)
from maypole.torch.optimizer import (DistributedOptimizer,
                                     _DistributedOptimizer)
