"""TorchState, and handlers for the kinds of values that it keeps.

    set_handler_registry(get_handler_registry() + [(EMA, EmaHandler)])

Thread contract: one thread.
"""

import copy
import os
import weakref
from typing import Any, Callable, Optional, Union

import torch

from maypole.common import basics
from maypole.common.agreement import Offer, decide
from maypole.common.elastic import ObjectState
from maypole.torch._in_place import load_state_dict
from maypole.torch._structures import TensorAt, put_back, specs_of, take_out, tensors_for
from maypole.torch.elastic.keeper import StateKeeper
from maypole.torch.elastic.references import References, is_plain
from maypole.torch.elastic.sampler import ElasticSampler
from maypole.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters


class StateHandler:
    """Saves, restores and synchronizes one value of a TorchState."""

    def __init__(self, value: Any):
        self.value = value

    def set_value(self, value: Any) -> None:
        """Called when the state's attribute was assigned."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Keeps a copy of the value."""
        raise NotImplementedError()

    def restore(self) -> None:
        """Sets the value to the copy."""
        raise NotImplementedError()

    def sync(self) -> None:
        """Gives all ranks the value of rank 0.

        The state saves only when all its values are synchronized, so that after
        a death in between restore() returns to values that belong together.
        """
        raise NotImplementedError()


class TensorsHandler(StateHandler):
    """A value with a state_dict() of tensors, which a StateKeeper can keep.

    fixed: all ranks' values have the same tensors from the start.
    """

    fixed = True

    def __init__(self, value: Any):
        super().__init__(value)
        self.save()

    def save(self) -> None:
        """Keeps a copy of the value's contents."""
        self._saved = copy.deepcopy(self.contents())

    def restore(self) -> None:
        """Loads the copy into the value."""
        self.begin()
        self.load(self._saved)

    def forget(self) -> None:
        """Drops the copy, because a StateKeeper has the last commit."""
        self._saved = None

    @property
    def has_saved(self) -> bool:
        """Whether save() has been called."""
        return self._saved is not None

    def contents(self) -> Any:
        """Returns what load() takes."""
        return self.value.state_dict()

    def load(self, contents: Any) -> None:
        """Loads these contents into the value."""
        self.value.load_state_dict(contents)

    def begin(self) -> None:
        """Called before the value is overwritten."""

    def new_tensors(self, specs: list[TensorAt]) -> list[torch.Tensor]:
        """If not fixed: returns tensors from which another state can be loaded."""
        raise NotImplementedError()


class ModelStateHandler(TensorsHandler):
    """A torch.nn.Module: its state_dict(), in place."""

    def sync(self) -> None:
        """Gives all ranks the model of rank 0."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(TensorsHandler):
    """A torch optimizer, also a DistributedOptimizer."""

    fixed = False  # its state appears with the first step

    def restore(self) -> None:
        """Loads the copy into the optimizer."""
        self.begin()
        # PyTorch 2 keeps the loaded tensors themselves, and steps change them.
        self.load(copy.deepcopy(self._saved))

    def load(self, contents: Any) -> None:
        """Loads this state into the optimizer."""
        load_state_dict(self.value, contents)

    def sync(self) -> None:
        """Gives all ranks the state of rank 0's optimizer."""
        self.begin()
        broadcast_optimizer_state(self.value, root_rank=0)

    def begin(self) -> None:
        """Drops the gradients of an interrupted step, which must not be used."""
        if hasattr(self.value, "abandon"):
            self.value.abandon()
        self.value.zero_grad()

    def new_tensors(self, specs: list[TensorAt]) -> list[torch.Tensor]:
        """Returns tensors for the optimizer's state, on the devices of its parameters."""
        return tensors_for(specs, self.value)


class SamplerStateHandler(StateHandler):
    """An ElasticSampler.

    root_rank is 0 unless a StateKeeper names another root. Rank 0's epoch and
    processed_num count, because they belong to its model. A rank whose last
    commit is one ahead of rank 0's (rank 0 did not see that commit's end) adds
    the indices that it had recorded at the commit before.
    """

    def __init__(self, sampler: ElasticSampler):
        super().__init__(sampler)
        self._saves = 0  # equal numbers on two ranks mean the same commit
        self._synced_saves: Any = None  # rank 0's, between sync() and save()
        self._previous = self._saved = sampler.state_dict()

    def contents(self) -> Any:
        """Returns what load_state_dict() takes."""
        return self.value.state_dict()

    def save(self) -> None:
        """Keeps a copy of the sampler's state."""
        now = self.contents()
        if self._synced_saves is None:
            self._previous = self._saved
        else:
            self._saves = self._synced_saves
            self._previous = now
        self._saved = now
        self._saves += 1
        self._synced_saves = None

    def restore(self) -> None:
        """Sets the sampler to the copy."""
        self.value.load_state_dict(self._saved)
        self._synced_saves = None

    def sync(self, root_rank: int = 0) -> None:
        """Gives all ranks what any of them has processed."""
        ranks = allgather_object(
            (self._saves, self._previous, self.value.state_dict()))
        saves, _, merged = ranks.pop(root_rank)
        for other, previous, current in ranks:
            of_commit = current if other <= saves else previous
            if of_commit["epoch"] == merged["epoch"]:
                merged["processed_indices"] |= of_commit["processed_indices"]
        self.value.load_state_dict(merged)
        self._synced_saves = saves


class StateDictHandler(StateHandler):
    """Any other object with state_dict() and load_state_dict(): a learning rate scheduler, a GradScaler.

    It stays the same object.

    references: returns the objects to which the state may refer.
    """

    def __init__(self, value: Any, references: Callable[[], References]):
        super().__init__(value)
        self._references = references
        self.save()

    def contents(self) -> Any:
        """What load_state_dict() takes, without weak references.

        Weak references point to the value itself, for example CyclicLR's to a method of its own (torch 1.13). They
        cannot be copied, and remain.
        """
        state = self.value.state_dict()
        if not isinstance(state, dict):
            return state
        return {key: item for key, item in state.items() if not isinstance(item, weakref.ref)}

    def save(self) -> None:
        """Keeps a copy of the value's state."""
        self._saved = self._references().copy(self.contents())

    def restore(self) -> None:
        """Loads the copy into the value."""
        self._end_step()
        self.value.load_state_dict(self._references().copy(self._saved))

    def _end_step(self) -> None:
        """Makes a GradScaler forget its notes about a step that was interrupted."""
        notes = getattr(self.value, "_per_optimizer_states", None)
        if isinstance(notes, dict):
            notes.clear()

    def sync(self, root_rank: int = 0) -> None:
        """As for every handler. root_rank: as for SamplerStateHandler."""
        self._end_step()
        references = self._references()
        is_root = basics.rank() == root_rank
        tensors: list[torch.Tensor] = []
        data = None
        if is_root:
            data = references.dumps(take_out(self.contents(), tensors))
        skeleton = references.loads(broadcast_object(data, root_rank))
        if not is_root:
            tensors = [torch.empty(at.shape, dtype=at.dtype, device=at.device)
                       for at in specs_of(skeleton)]
        broadcast_parameters([(f"state_dict.{i}", tensor)
                              for i, tensor in enumerate(tensors)], root_rank)
        if not is_root:
            self.value.load_state_dict(put_back(skeleton, tensors))


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Returns the pairs (class of values, class of handlers) that TorchState tries, in order."""
    return list(_registry)


def set_handler_registry(
        registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replaces the registry, for states that are made from now on."""
    _registry[:] = registry


def _has_state_dict(value: Any) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None))
        for name in ("state_dict", "load_state_dict"))


# Kept states, by name: the executor has one memory for each name.
_kept: "weakref.WeakValueDictionary[str, TorchState]" = (
    weakref.WeakValueDictionary())


class TorchState(ObjectState):
    """The state of training: a model, an optimizer, samplers, and objects.

        state = TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    All are attributes: state.model, state.epoch += 1. Models, optimizers, samplers and other objects with
    state_dict() and load_state_dict() (a scheduler, a GradScaler) are restored in place. Of other values the
    state keeps copies, which refer to the same models and optimizers.

    Args:
        model: a torch.nn.Module.
        optimizer: a torch optimizer, also a DistributedOptimizer.
        keep: in an elastic job, keeps commits in memory that survives this process (docs/elastic.md). True, or
        a name if a script has several such states; None: what MAYPOLE_KEEP_STATE says (1: True). Values of
        your own handlers are not in that memory. **kwargs: the state's attributes, with their values.
    """

    def __init__(self,
                 model: Any = None,
                 optimizer: Any = None,
                 *,
                 keep: Union[bool, str, None] = None,
                 **kwargs: Any):
        self._handlers: dict[str, StateHandler] = {}
        self._keeper: Optional[StateKeeper] = None
        values = dict(kwargs, model=model, optimizer=optimizer)
        # Values with a handler of the registry first: the states of other values may refer to them.
        for find in (self._registered_handler, self._state_dict_handler):
            for name in list(values):
                handler = find(values[name])
                if handler is None:
                    continue
                self._check_name(name)
                setattr(self, name, values.pop(name))
                self._handlers[name] = handler
        super().__init__(self._broadcast, basics.rank, **values)
        if keep is None:
            keep = os.environ.get("MAYPOLE_KEEP_STATE") == "1"
        if keep:
            self._keep("state" if keep is True else keep)

    @staticmethod
    def _registered_handler(value: Any) -> Optional[StateHandler]:
        for kind, handler in _registry:
            if isinstance(value, kind):
                return handler(value)
        return None

    def _state_dict_handler(self, value: Any) -> Optional[StateHandler]:
        if not _has_state_dict(value):
            return None
        return StateDictHandler(value, self._references)

    def _references(self) -> References:
        return References({name: handler.value
                           for name, handler in self._handlers.items()})

    def _copies(self, values: dict[str, Any]) -> dict[str, Any]:
        if all(is_plain(value) for value in values.values()):
            return copy.deepcopy(values)
        references = self._references()
        return self._named(references.copy, references.copy, values)

    def _broadcast(self, values: Any, root_rank: int = 0) -> Any:
        """As broadcast_object(), but references become the receiver's objects."""
        references = self._references()
        data = None
        if basics.rank() == root_rank:
            data = references.dumps(values)
        return references.loads(broadcast_object(data, root_rank))

    def _ordered(self) -> list[tuple[str, StateHandler]]:
        """Returns the handlers in the same order on all ranks; those whose values may refer to others come last."""
        return sorted(self._handlers.items(), key=lambda item: (isinstance(
            item[1], StateDictHandler), item[0]))

    def _keep(self, name: str) -> None:
        if name in _kept:
            raise ValueError(
                f"another TorchState is kept under the name {name!r}; give this "
                "one a name of its own: keep='name'")
        _kept[name] = self
        self._keeper = StateKeeper(name, dict(self._of_kind(TensorsHandler)))

    @property
    def restored_bytes(self) -> int:
        """Bytes of tensors that this process has read from memory that dead processes have left with the executor."""
        return self._keeper.restored_bytes if self._keeper else 0

    @property
    def broadcast_bytes(self) -> int:
        """Bytes of tensors that sync() has broadcast to or from this process; 0 if the state is not kept."""
        return self._keeper.broadcast_bytes if self._keeper else 0

    def save(self) -> None:
        """Keeps the state: in the executor where there is room, otherwise in copies."""
        kept = self._keeper is not None and self._keeper.save(self._rest())
        for _, handler in self._ordered():
            if kept and isinstance(handler, TensorsHandler):
                handler.forget()
            else:
                handler.save()
        super().save()

    def restore(self) -> None:
        """Sets the state to that of the last save()."""
        if any(not h.has_saved for _, h in self._of_kind(TensorsHandler)):
            assert self._keeper is not None  # it has what the handlers have not saved
            self._keeper.restore()
        for _, handler in self._ordered():
            if not isinstance(handler, TensorsHandler) or handler.has_saved:
                handler.restore()
        super().restore()

    def sync(self) -> None:
        """Gives all ranks the newest state, and saves it."""
        if self._keeper is not None and basics.is_elastic():
            return self._sync_kept(self._keeper)
        for _, handler in self._ordered():
            handler.sync()
        super().sync()  # saves

    def on_finished(self) -> None:
        """Drops the commits in the executor."""
        if self._keeper is not None:
            self._keeper.drop()

    def _passes_if_within_step(self) -> int:
        optimizers = (handler.value for _, handler in self._of_kind(OptimizerStateHandler))
        return max((getattr(optimizer, "passes_if_within_step", int)() for optimizer in optimizers), default=0)

    def _sync_kept(self, keeper: StateKeeper) -> None:
        if not keeper.started:
            self._load_rest(keeper.load_newest())
        offers = allgather_object(Offer(keeper.started, keeper.commit),
                                  f"maypole.elastic.{keeper.name}.offers")
        plan = decide(offers)
        if not keeper.started and plan.commit not in (None, keeper.commit):
            self._load_rest(keeper.load(plan.commit))
        keeper.sync(plan)
        for _, handler in self._ordered():
            if isinstance(handler, (SamplerStateHandler, StateDictHandler)):
                handler.sync(plan.root)
            elif not isinstance(handler, TensorsHandler):
                handler.sync()
        if self._saved_state:
            self._set(self._named(lambda values: self._broadcast(values, plan.root), self._references().dumps,
                                  self._objects()))
        keeper.start(plan)
        self.save()

    def _objects(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _rest(self) -> Any:
        """Returns what a new process needs besides the tensors, as bytes."""
        states = {name: handler.contents() for kind in (SamplerStateHandler, StateDictHandler)
                  for name, handler in self._of_kind(kind)}
        references = self._references()
        return bytes(self._named(lambda values: references.dumps((values, states)), references.dumps, self._objects()))

    def _load_rest(self, rest: Any) -> None:
        if rest is None:
            return
        values, states = self._references().loads(rest)
        self._set(values)
        for kind in (SamplerStateHandler, StateDictHandler):
            for name, handler in self._of_kind(kind):
                handler.value.load_state_dict(states[name])

    def _of_kind(self, kind: type) -> list[tuple[str, Any]]:
        return [(name, self._handlers[name])
                for name in sorted(self._handlers)
                if isinstance(self._handlers[name], kind)]

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None and handler.value is not value:
            handler.set_value(value)
        super().__setattr__(name, value)
