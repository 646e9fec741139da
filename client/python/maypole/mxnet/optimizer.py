"""DistributedOptimizer and DistributedTrainer.

Both average the gradients over the ranks before the update. num_groups is
accepted for compatibility: libmaypole packs small tensors together itself.

Thread contract: that of MXNet's optimizers and trainers.
"""

import logging
from typing import Any, Optional

import mxnet as mx

from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.mxnet.compression import Compression, Compressor
from maypole.mxnet.ops import allreduce_

_log = logging.getLogger("maypole.mxnet")


def _average(gradient: mx.nd.NDArray, name: str, index: int, predivide: float,
             process_set: Any) -> None:
    # predivide: the part of the division that comes before the sum.
    allreduce_(gradient, average=True, name=name, priority=-index,
               prescale_factor=1.0 / predivide, postscale_factor=predivide,
               process_set=process_set)


class DistributedOptimizer(mx.optimizer.Optimizer):
    """An optimizer whose updates use the average of all ranks' gradients.

    For the Module API and other loops that call update(); Gluon has DistributedTrainer. A rank that is not in
    the process set uses its own gradients.

    Args:
        optimizer: the optimizer of this rank.
        gradient_predivide_factor: with Average, gradients are divided by it before and multiplied by it after
            the sum.
        num_groups: accepted, without effect: the coordinator groups operations itself.
        process_set: the ranks whose gradients are reduced.
    """

    def __init__(self, optimizer: mx.optimizer.Optimizer,
                 gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                 process_set: ProcessSet = global_process_set):
        self._optimizer = optimizer
        self._gradient_predivide_factor = gradient_predivide_factor
        self._process_set = process_set

    def __getattr__(self, item: str) -> Any:
        if item == "_optimizer":  # while it is unpickled
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def create_state(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state of a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state of a weight, with a copy of float32 if it wants one."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def _do_allreduce(self, index: Any, grad: Any) -> None:
        if self._process_set.size() == 1 or not self._process_set.included():
            return
        if not isinstance(index, (tuple, list)):
            index, grad = [index], [grad]
        for i, gradient in zip(index, grad):
            _average(gradient, f"DistributedOptimizer.{i}",
                     i if isinstance(i, int) else 0,
                     self._gradient_predivide_factor, self._process_set)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Reduces the gradient, then takes the wrapped optimizer's step."""
        self._do_allreduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any,
                               state: Any) -> None:
        """As update(), for weights of 16-bit floats."""
        self._do_allreduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Sets the wrapped optimizer's learning rate."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Sets the wrapped optimizer's factors of the learning rate."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Sets the wrapped optimizer's factors of the weight decay."""
        self._optimizer.set_wd_mult(args_wd_mult)


class DistributedTrainer(mx.gluon.Trainer):
    """A gluon.Trainer whose step() uses the average of all ranks' gradients.

    Args:
        params: as for gluon.Trainer.
        optimizer: as for gluon.Trainer.
        optimizer_params: as for gluon.Trainer.
        compression: Compression.fp16 sends gradients in 16 bits.
        gradient_predivide_factor: the part of the division by the number of ranks that comes before the sum.
        prefix: the prefix of the gradients' names; needed for a second trainer. Parameters whose initialization is
            deferred are fine.
        num_groups: accepted, without effect: the coordinator groups operations itself.
        process_set: the ranks whose gradients are reduced.

    Raises:
        ValueError: a parameter is on several contexts (a rank has one device).
    """

    def __init__(self, params: Any, optimizer: Any,
                 optimizer_params: Optional[dict] = None,
                 compression: type[Compressor] = Compression.none,
                 gradient_predivide_factor: float = 1.0,
                 prefix: Optional[str] = None, num_groups: int = 0,
                 process_set: ProcessSet = global_process_set):
        if isinstance(optimizer, DistributedOptimizer):
            _log.warning("maypole: DistributedTrainer takes the optimizer of "
                         "the given DistributedOptimizer")
            optimizer = optimizer._optimizer
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._compression = compression
        self._gradient_predivide_factor = gradient_predivide_factor
        self._prefix = prefix or ""
        self._process_set = process_set

    def _allreduce_grads(self) -> None:
        if self._process_set.size() == 1 or not self._process_set.included():
            return
        for i, param in enumerate(self._params):
            if param.grad_req == "null":
                continue
            gradients = param.list_grad()
            if len(gradients) > 1:
                raise ValueError(
                    f"DistributedTrainer: parameter {param.name!r} is on "
                    f"{param.list_ctx()}, expected one context: run one rank "
                    "per device")
            small, ctx = self._compression.compress(gradients[0])
            _average(small, f"DistributedTrainer.{self._prefix}{i}", i,
                     self._gradient_predivide_factor, self._process_set)
            if small is not gradients[0]:
                self._compression.decompress(small, ctx).copyto(gradients[0])
