"""The gradients of one step, reduced over the ranks: for tapes and optimizers.

    reduction = GradientReduction("DistributedGradientTape", op=Average)
    reduced = reduction(gradients, variables)

Gradients are submitted in groups, so that a step's operations are in flight
together, in whatever order a graph's executor runs them. Without `groups`, eager
gradients, which are all available, form one group. In a graph a group has at
most _GROUP_BYTES, and variables are taken from the last to the first, the order
in which backpropagation computes their gradients: a large model's first groups
travel while it computes the others.

Names: a group is named after the variables of its gradients, so that a step that
is traced again, here or elsewhere, has the same names. The n-th use of a name in
one graph gets the number n, because its operations may be in flight together
with those of the first. All ranks must build their graphs in the same order, and
have the same variables; gradients may be missing on some ranks
(_gradient_layouts.py). The ranks also compare the variables now and then (_equal_weights.py).

Thread contract: any thread, but only one at a time with the same variables.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from maypole.common import basics, training_arguments
from maypole.common.constants import Average, ReduceOp
from maypole.common.process_sets import ProcessSet, global_process_set
from maypole.tensorflow import _equal_weights, _gradient_layouts, _nodes, reductions
from maypole.tensorflow._library import as_it_is
from maypole.tensorflow.compression import Compression
from maypole.tensorflow.mpi_ops import size_op
from maypole.tensorflow.util import groups_of, vars_to_refs, without_counts

_GROUP_BYTES = 32 << 20


class LocalVariables:
    """Variables whose gradients stay on their rank (model parallelism).

    scale: divide these gradients by the number of ranks, like the gradients of the averaged loss.
    """

    def __init__(self, process_set: Any, scale: bool):
        self._process_set = process_set
        self._scale = scale
        self._refs: set[Any] = set()

    def register(self, variables: Any) -> None:
        """Adds variables: one, or a structure of them."""
        for variable in tf.nest.flatten(variables):
            self._refs.add(vars_to_refs(variable))

    def __contains__(self, variable: Any) -> bool:
        return bool(self._refs) and vars_to_refs(variable) in self._refs

    def reduce_others(self, reduce: Callable[[list[Any], list[Any]], Any],
                      gradients: Sequence[Any], variables: Sequence[Any],
                      scale: bool = True) -> list[Any]:
        """Reduces the gradients of all other variables by reduce(gradients, variables); returns all gradients.

        scale: whether to scale the gradients that stay on their rank.
        """
        local = [variable in self for variable in variables]
        others = [i for i, here in enumerate(local) if not here]
        reduced = reduce([gradients[i] for i in others],
                         [variables[i] for i in others])
        result = [None if not here else self._scaled(g) if scale else g
                  for g, here in zip(gradients, local)]
        for i, gradient in zip(others, reduced):
            result[i] = gradient
        return result

    def _scaled(self, gradient: Any) -> Any:
        if gradient is None or not self._scale:
            return gradient
        size = ranks_of(self._process_set)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(_divided(gradient.values, size),
                                    gradient.indices, gradient.dense_shape)
        return _divided(gradient, size)


def _divided(tensor: Any, size: Any) -> Any:
    return tensor / tf.cast(size, tensor.dtype)


def ranks_of(process_set: Any) -> Any:
    """Returns the number of ranks in the set.

    In an elastic job it is a tensor, because a function that is traced once runs with other numbers later.
    """
    if basics.is_elastic():
        return size_op(process_set.process_set_id)
    return process_set.size()


class GradientReduction:
    """Reduces gradients; one that no rank has stays None. See DistributedOptimizer() for the keywords.

    local: variables whose gradients stay on this rank.
    """

    def __init__(self,
                 name: str,
                 device_dense: str = "",
                 device_sparse: str = "",
                 compression: Any = Compression.none,
                 sparse_as_dense: bool = False,
                 op: ReduceOp = Average,
                 gradient_predivide_factor: float = 1.0,
                 groups: Any = None,
                 process_set: ProcessSet = global_process_set,
                 scale_local_gradients: bool = True):
        training_arguments.check_predivision(op, gradient_predivide_factor)
        self._name = name
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        self._groups = groups
        self.local = LocalVariables(process_set, scale_local_gradients)
        self._options = dict(
            device_dense=device_dense, device_sparse=device_sparse, op=op,
            compression=compression, process_set=process_set)
        if op == Average and gradient_predivide_factor != 1.0:
            self._options.update(
                prescale_factor=1.0 / gradient_predivide_factor,
                postscale_factor=gradient_predivide_factor)

    @as_it_is
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any],
                 use_generic_names: bool = False) -> list[Any]:
        """Returns the reduced gradients of the variables, in their order.

        use_generic_names: names by position, for ranks whose variables have
        different names.
        """
        return self.local.reduce_others(
            lambda g, v: self._reduced(g, v, use_generic_names),
            gradients, variables)

    @as_it_is
    def completed(self, gradients: Sequence[Any],
                  variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients, with zeros in place of those that only other ranks have.

        For sums, which must have the same members on all ranks.
        """
        return self.local.reduce_others(
            lambda g, v: self._completed(g, v, _labels(v, False)), gradients,
            variables, scale=False)

    def _is_alone(self) -> bool:
        return not basics.is_elastic() and self._process_set.size() == 1

    def _completed(self, gradients: list[Any], variables: list[Any], labels: list[str],
                   mark: Optional[_equal_weights.Mark] = None) -> list[Any]:
        if self._is_alone() or not variables:
            return list(gradients)
        return _gradient_layouts.completed(
            self._name, self._process_set, gradients, variables, labels,
            self._sparse_as_dense, mark)

    def _reduced(self, gradients: list[Any], variables: list[Any],
                 generic: bool) -> list[Any]:
        if self._is_alone():
            return list(gradients)
        labels = _labels(variables, generic)
        mark = _equal_weights.Mark(self._name, self._process_set, variables)
        gradients = self._completed(gradients, variables, labels, mark)
        checked = _equal_weights.checked(self._name, self._process_set, gradients, variables, labels, mark)
        with tf.control_dependencies(checked), _nodes.together():
            return self._submitted(gradients, variables, labels)

    def _submitted(self, gradients: list[Any], variables: list[Any],
                   labels: list[str]) -> list[Any]:
        result = list(gradients)
        dense = []
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                if self._sparse_as_dense:
                    result[i] = tf.convert_to_tensor(gradient)
                else:
                    result[i] = self._sparse(gradient, labels[i])
                    continue
            if gradient is not None:
                dense.append(i)
        for group in self._grouped(dense, result, variables):
            reduced = self._dense([result[i] for i in group],
                                  [labels[i] for i in group])
            for i, gradient in zip(group, reduced):
                result[i] = gradient
        return result

    def _dense(self, gradients: list[Any], labels: list[str]) -> list[Any]:
        digest = hashlib.sha1("\n".join(labels).encode()).hexdigest()[:8]
        name = f"{self._name}.{labels[0]}"
        if len(labels) > 1:
            name += f"+{len(labels) - 1}_{digest}"
        return reductions.grouped_allreduce(
            gradients, name=unique_name(name), ignore_name_scope=True,
            **self._options)

    def _sparse(self, gradient: tf.IndexedSlices, label: str) -> Any:
        return reductions.allreduce(
            gradient, name=unique_name(f"{self._name}.{label}"),
            ignore_name_scope=True, **self._options)

    def _grouped(self, dense: list[int], gradients: list[Any],
                 variables: list[Any]) -> list[list[int]]:
        """Divides the indices `dense` into groups that are reduced together."""
        if isinstance(self._groups, int) and self._groups > 0:
            length = -(-len(dense) // self._groups)
            return [dense[i:i + length]
                    for i in range(0, len(dense), length or 1)]
        if self._groups:
            return self._as_told(dense, variables)
        if tf.executing_eagerly():
            return [dense] if dense else []
        return groups_of(reversed(dense), gradients.__getitem__, _GROUP_BYTES)

    def _as_told(self, dense: list[int], variables: list[Any]
                ) -> list[list[int]]:
        group_of = {vars_to_refs(variable): number
                    for number, group in enumerate(self._groups)
                    for variable in group}
        groups: list[list[int]] = [[] for _ in self._groups]
        for i in dense:
            number = group_of.get(vars_to_refs(variables[i]))
            if number is None:
                groups.append([i])
            else:
                groups[number].append(i)
        return [group for group in groups if group]


def _labels(variables: Sequence[Any], generic: bool) -> list[str]:
    if generic:
        return [f"gradient_{i}" for i in range(len(variables))]
    labels = [label_of(variable) for variable in variables]
    # A new process has not made what the others have made before.
    return without_counts(labels) if basics.is_elastic() else labels


def label_of(variable: Any) -> str:
    """Returns the variable's name, as a part of an operation's name."""
    name = getattr(variable, "path", None)  # of Keras 3
    if name is None:
        # A watched tensor has no name outside a graph.
        with contextlib.suppress(AttributeError):
            name = variable.name
    # Without slashes, because the part before a slash counts as a name scope.
    return (name or "tensor").partition(":")[0].replace("/", ".")


def unique_name(name: str) -> str:
    """Returns the name, with a number if this graph has used it before."""
    use = _nodes.count_use(name)
    return name if use == 1 else f"{name}.{use}"
