"""The collectives of maypole.tensorflow, and the job's functions."""

from horovod._forward import forward

__getattr__, __dir__, __all__ = forward("maypole.tensorflow.mpi_ops",
                                            "maypole.tensorflow")
