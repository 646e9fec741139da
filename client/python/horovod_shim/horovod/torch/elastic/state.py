"""States of elastic training, and what saves their parts."""

from maypole.torch.elastic.state import (ModelStateHandler,
                                         OptimizerStateHandler,
                                         SamplerStateHandler, StateHandler,
                                         TorchState, get_handler_registry,
                                         set_handler_registry)
