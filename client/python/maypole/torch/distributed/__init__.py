"""torch.distributed on Maypole: a process group backend.

    import torch.distributed as dist
    dist.init_process_group("maypole")  # torch before 2.15: after "import maypole.torch.distributed"

Every operation of the process group runs as one of Maypole's, so its errors name tensors, ranks and nodes, and the
timeline, the dashboard and the metrics show it. A group of some ranks is a process set. Operations of a group are
matched by the order of the calls, as torch.distributed requires: their names are `GROUP#N`, N counted modulo
1,024.

Tensors may be on the CPU or on CUDA devices. Thread contract: that of torch.distributed: one thread at a time calls
operations of a group.
"""

from maypole.torch.distributed._create import register

__all__ = ["register"]

register()
