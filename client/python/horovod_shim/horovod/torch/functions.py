"""Broadcasting models, optimizers and objects."""

from maypole.torch.functions import (allgather_object, broadcast_object,
                                     broadcast_optimizer_state,
                                     broadcast_parameters)
