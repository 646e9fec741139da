"""TorchState, and the handlers of the kinds of values that it keeps.

    set_handler_registry(get_handler_registry() + [(EMA, EmaHandler)])

Thread contract: one thread.
"""

import copy
from typing import Any, Dict, List, Tuple, Type

import torch

from maypole.common import basics
from maypole.common.elastic import ObjectState
from maypole.torch.elastic.sampler import ElasticSampler
from maypole.torch.functions import (allgather_object, broadcast_object,
                                     broadcast_optimizer_state,
                                     broadcast_parameters)


class StateHandler:
    """Saves, restores and synchronizes one value of a TorchState."""

    def __init__(self, value: Any):
        self.value = value

    def set_value(self, value: Any) -> None:
        """The state's attribute was assigned."""
        self.value = value
        self.save()

    def save(self) -> None:
        raise NotImplementedError()

    def restore(self) -> None:
        raise NotImplementedError()

    def sync(self) -> None:
        """Gives all ranks the value of rank 0. The state saves it when all its
        values are synchronized, so that after a death in the middle restore()
        returns to values that belong together."""
        raise NotImplementedError()


class ModelStateHandler(StateHandler):
    """A torch.nn.Module: its state_dict(), in place."""

    def __init__(self, model: torch.nn.Module):
        super().__init__(model)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateHandler):
    """A torch optimizer, also a DistributedOptimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        super().__init__(optimizer)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self._end_step()
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        self._end_step()
        broadcast_optimizer_state(self.value, root_rank=0)

    def _end_step(self) -> None:
        # The gradients of an interrupted step are not to be used.
        if hasattr(self.value, "abandon"):
            self.value.abandon()
        self.value.zero_grad()


class SamplerStateHandler(StateHandler):
    """An ElasticSampler.

    Rank 0's epoch and processed_num count, as they belong to its model. A rank
    whose last commit is one ahead of rank 0's (rank 0 did not see its end) adds
    the indices that it had recorded at the commit before.
    """

    def __init__(self, sampler: ElasticSampler):
        super().__init__(sampler)
        self._saves = 0  # the same number on all ranks is the same commit
        self._synced_saves: Any = None  # rank 0's, between sync() and save()
        self._previous = self._saved = sampler.state_dict()

    def save(self) -> None:
        now = self.value.state_dict()
        if self._synced_saves is None:
            self._previous = self._saved
        else:
            self._saves = self._synced_saves
            self._previous = now
        self._saved = now
        self._saves += 1
        self._synced_saves = None

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)
        self._synced_saves = None

    def sync(self) -> None:
        ranks = allgather_object(
            (self._saves, self._previous, self.value.state_dict()))
        saves, _, merged = ranks[0]
        for other, previous, current in ranks[1:]:
            of_commit = current if other <= saves else previous
            if of_commit["epoch"] == merged["epoch"]:
                merged["processed_indices"] |= of_commit["processed_indices"]
        self.value.load_state_dict(merged)
        self._synced_saves = saves


_registry: List[Tuple[type, Type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> List[Tuple[type, Type[StateHandler]]]:
    """The (class of values, class of handlers) that TorchState looks through,
    in order."""
    return list(_registry)


def set_handler_registry(
        registry: List[Tuple[type, Type[StateHandler]]]) -> None:
    """Replaces the registry, for states that are made from now on."""
    _registry[:] = registry


def _handler_for(value: Any) -> Any:
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None


class TorchState(ObjectState):
    """The state of training: a model, an optimizer, samplers, and objects.

        state = TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    All are attributes: state.model, state.epoch += 1. Models, optimizers and
    samplers are restored in place; of other values copies are kept.
    """

    def __init__(self,
                 model: Any = None,
                 optimizer: Any = None,
                 **kwargs: Any):
        self._handlers: Dict[str, StateHandler] = {}
        values = dict(kwargs, model=model, optimizer=optimizer)
        for name in list(values):
            handler = _handler_for(values[name])
            if handler is None:
                continue
            self._check_name(name)
            setattr(self, name, values.pop(name))
            self._handlers[name] = handler
        super().__init__(broadcast_object, basics.rank, **values)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for name in sorted(self._handlers):  # the same order on all ranks
            self._handlers[name].sync()
        super().sync()  # saves

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)
        super().__setattr__(name, value)
