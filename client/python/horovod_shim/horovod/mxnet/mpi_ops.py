"""The collectives of maypole.mxnet, and the job's functions."""

from horovod._forward import forward

__getattr__, __dir__, __all__ = forward("maypole.mxnet")
