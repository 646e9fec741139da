"""maypole.spark under Horovod's name."""

from horovod._forward import forward

__getattr__, __dir__, __all__ = forward("maypole.spark")
