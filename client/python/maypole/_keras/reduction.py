"""Interprets the arguments of DistributedOptimizer: which gradients are reduced, how, and under which names.

Ranks may have created their models and optimizers in different orders, so that Keras has given
their variables different names. Therefore operations are named after the shapes of all variables
of the optimizer, and a gradient's position among them.

Thread contract: that of the optimizer, one thread at a time.
"""

import pickle
import zlib
from collections.abc import Sequence
from typing import Any, Optional

from maypole.common import basics, process_sets, training_arguments
from maypole.common.constants import ReduceOp


class Reduction:
    """The arguments of one DistributedOptimizer; see maypole.keras for each.

    gradients: the backend's BackendGradients.
    local_layers: layers whose gradients stay on their rank.
    passes: the number of passes over which gradients are summed; 1: no sums here, but the optimizer may have its own.
    """

    def __init__(self, gradients: Any, name: Optional[str], compression: Any,
                 sparse_as_dense: bool, op: ReduceOp, gradient_predivide_factor: float, passes: int,
                 average_aggregated_gradients: bool, process_set: Any,
                 local_layers: Sequence[Any], scale_local_gradients: bool):
        basics.size()  # raises ValueError before init()
        process_sets.id_of(process_set)
        training_arguments.check_op(op)
        training_arguments.check_predivision(op, gradient_predivide_factor)
        training_arguments.check_passes(passes)
        self.gradients = gradients
        self.ahead = Ahead()
        self.name = name or "optimizer"
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.op = op
        self.passes = passes
        self.prescale = 1.0 / gradient_predivide_factor
        self.postscale = gradient_predivide_factor
        self.process_set = process_set
        self.local_layers = list(local_layers)
        self.local_variables: list[Any] = []  # those of register_local_var()
        self.scale_local_gradients = scale_local_gradients
        self.sparse: set[int] = set()  # id() of the variables that have had sparse gradients; see equal_start.py
        self.has_set_passes = False  # whether DistributedOptimizer() has made Keras 3's optimizer accumulate
        # Keras averages over the passes.
        self.over_passes = 1 if average_aggregated_gradients else passes

    def __copy__(self) -> "Reduction":
        """Copies for a copy of the optimizer, with the layers, variables and process set of this one."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, gradients=type(self.gradients)(), ahead=Ahead(), sparse=set(),
                               local_variables=list(self.local_variables))
        return copied

    def __deepcopy__(self, memo: Any) -> "Reduction":
        return self.__copy__()

    def __getstate__(self) -> Any:
        """Raises PicklingError if it refers to objects that exist only in this process."""
        if self.has_local() or self.process_set is not process_sets.global_process_set:
            raise pickle.PicklingError(
                "a distributed optimizer with local layers or variables, or with a process set, "
                "cannot be pickled; pickle o.get_config(), and pass an "
                "optimizer made from it to DistributedOptimizer() where it is loaded")
        return dict(self.__dict__, gradients=type(self.gradients), ahead=None, sparse=set(), process_set=None)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state, gradients=state["gradients"](), ahead=Ahead(),
                             process_set=process_sets.global_process_set)

    def active(self) -> bool:
        """Whether other ranks may have gradients to reduce. The only rank of an elastic job may get company."""
        return self.process_set.included() and (self.process_set.size() > 1
                                                or basics.is_elastic())

    def has_local(self) -> bool:
        """Whether some gradients stay on their rank."""
        return bool(self.local_layers or self.local_variables)

    def is_local(self, variable: Any, key: Any) -> bool:
        """Whether the gradient of this variable stays on its rank. key: returns a key that identifies a variable."""
        if not self.has_local():
            return False
        local = {key(v) for v in self.local_variables}
        for layer in self.local_layers:
            local.update(key(v) for v in layer.trainable_variables)
        return key(variable) in local

    def prefix(self, variables: Sequence[Any]) -> str:
        """Returns the beginning of the operations' names, for an optimizer with these variables."""
        shapes = ",".join(f"{tuple(v.shape)}" for v in variables)
        return f"keras.{self.name}.{zlib.crc32(shapes.encode()):08x}"


class Ahead:
    """The gradients that a program's own loop has already reduced, until it applies them.

    It may also only look at them, and apply others; so Step.with_rest_reduced() finds out which have been reduced. A
    place is the graph in which that happens, or None; it does not count in other graphs.
    """

    def __init__(self) -> None:
        self._grads: dict[Any, Any] = {}  # by key of the variable
        self._place: Any = None

    def note(self, keys: Sequence[Any], grads: Sequence[Any], place: Any) -> None:
        """Records that these have been reduced."""
        self._grads, self._place = dict(zip(keys, grads)), place

    def take(self, keys: Sequence[Any], place: Any) -> Optional[list[Any]]:
        """Returns the reduced gradients of the variables to which gradients are being applied; forgets the record.

        None: they have not been reduced. Raises RuntimeError if only some of them have been reduced.
        """
        reduced = self._grads if self._place == place else {}
        self._grads = {}
        there = [key in reduced for key in keys]
        if any(there) and not all(there):
            raise RuntimeError(
                f"apply of {len(there)} gradients, of which {sum(there)} have been reduced by "
                "_compute_gradients() or _aggregate_gradients(), expected none or all; pass these "
                "methods all variables that you apply gradients to")
        return [reduced[key] for key in keys] if any(there) else None


class Step:
    """The gradients of one step: their names, and which of them stay on their rank.

    variables: the gradients' variables. indices: their indices among all variables of the optimizer.
    """

    def __init__(self, reduction: Reduction, prefix: str, variables: Sequence[Any],
                 indices: Sequence[int], local: Sequence[bool]):
        self.reduction = reduction
        self.prefix = prefix
        self.variables = list(variables)
        self.indices = list(indices)
        self.local = list(local)

    def only(self, kept: Sequence[bool]) -> "Step":
        """Returns this step without the gradients that are not kept."""

        def some(values: list[Any]) -> list[Any]:
            return [value for value, keep in zip(values, kept) if keep]

        return Step(self.reduction, self.prefix, some(self.variables), some(self.indices),
                    some(self.local))

    def completed(self, grads: Sequence[Any]) -> list[Any]:
        """See BackendGradients.complete(); leaves out gradients that stay on their rank."""
        shared = self.only([not local for local in self.local])
        found = iter(self.reduction.gradients.complete(
            self.reduction, [g for g, local in zip(grads, self.local) if not local], self.prefix,
            shared.indices, shared.variables))
        return [grad if local else next(found) for grad, local in zip(grads, self.local)]

    def with_rest_reduced(self, grads: Sequence[Any], reduced: Sequence[Any]) -> list[Any]:
        """Returns the gradients; those that do not come from the reduced ones are reduced now.

        A program may have computed reduced gradients only to look at them, and apply others.
        """
        there = [grad is not None and not local for grad, local in zip(grads, self.local)]
        shared = self.only(there)
        rest = iter(self.reduction.gradients.not_from(
            self.reduction, [grad for grad, here in zip(grads, there) if here],
            [grad for grad, here in zip(reduced, there) if here], f"{self.prefix}.ahead", shared.variables))
        missing = [here and next(rest) for here in there]
        if not any(missing):
            return list(grads)
        step = self.only(missing)
        found = iter(step.reduced(step.completed([g for g, here in zip(grads, missing) if here]), False))
        return [next(found) if here else grad for grad, here in zip(grads, missing)]

    def owns(self, grads: Sequence[Any]) -> bool:
        """Whether the gradients may be overwritten."""
        return self.reduction.gradients.owns(grads, self.variables)

    def reduced(self, grads: Sequence[Any], own: bool, factor: float = 1.0) -> list[Any]:
        """Returns the gradients with which all ranks step. own: they may be overwritten. factor: multiplies all.

        A gradient that is None stays None.
        """
        reduction, out = self.reduction, list(grads)
        there = [i for i, g in enumerate(grads) if g is not None]
        shared = [i for i in there if not self.local[i]]
        results = reduction.gradients.reduce(reduction, [grads[i] for i in shared], self.prefix,
                                             [self.indices[i] for i in shared], own,
                                             reduction.postscale * factor)
        for i, result in zip(shared, results):
            out[i] = result
        if reduction.scale_local_gradients:
            factor /= reduction.process_set.size()
        for i in there:
            if self.local[i] and factor != 1.0:
                out[i] = reduction.gradients.scaled(grads[i], factor)
        return out
