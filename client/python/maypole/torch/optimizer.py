"""DistributedOptimizer: any torch optimizer, stepping with the gradients of all ranks.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters())
    loss.backward()      # starts an allreduce of each gradient when it is ready
    optimizer.step()     # waits for them, then steps

_reduction.py has the reductions; this file has the optimizer's methods and checks the
arguments.

Thread contract: as torch's optimizers, one thread at a time.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

import torch

from maypole.common import basics, process_sets, training_arguments
from maypole.common.constants import Adasum, Average, ReduceOp
from maypole.common.process_sets import global_process_set
from maypole.torch._compiling import not_compiled
from maypole.torch._gradients.parameters import is_watched
from maypole.torch._reduction import GradientReduction, Options
from maypole.torch._tensors import has_no_memory
from maypole.torch._wrapping import Wrapped, attach, step_is_counted
from maypole.torch.adasum_optimizer import DistributedAdasumOptimizer
from maypole.torch.compression import Compression, PowerSGD


class _DistributedOptimizer(Wrapped):
    """The methods that DistributedOptimizer() adds to an optimizer's class."""

    _skips_synchronize = False

    def _attach(self) -> None:
        self._maypole = GradientReduction(self, self._maypole_options)

    def _attach_copy(self) -> None:
        if self._maypole is None and self._maypole_options is not None and (
                not is_watched(self._maypole_options.names)):
            self._maypole = GradientReduction(self, self._maypole_options, True)

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes are accumulated locally per step."""
        return self._maypole_options.backward_passes_per_step

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes are accumulated locally per step."""
        self._maypole_options.backward_passes_per_step = passes
        if self._maypole is not None:
            self._maypole.set_passes(passes)

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; .grad then has the results.

        Also reduces gradients whose reduction no hook has started. A missing
        gradient counts as zeros; a gradient that no rank has ever had stays
        None. If reductions fail, it waits for all of them and then raises the
        first error; the gradients are then undefined, but the optimizer can
        still be used.
        """
        reduction = self._attached()
        if reduction is not None:
            reduction.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which step() does not call synchronize() again.

        To change the gradients between the two:

            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        """
        self._skips_synchronize = True
        try:
            yield
        finally:
            self._skips_synchronize = False

    @step_is_counted
    @not_compiled
    def step(self, closure: Optional[Callable[[], Any]] = None, *args: Any,
             **kwargs: Any) -> Any:
        """Waits until the gradients are reduced, then steps.

        With a closure, gradients are reduced before it, if there are any, and
        after each call of it. For LBFGS the loss is reduced as well.
        """
        self._count_step()
        reduction = self._attached()
        if closure is not None:
            args = (closure,) + args
        if reduction is None:
            return super().step(*args, **kwargs)
        if closure is not None:
            reduction.before_closure()
            args = (self._synchronized_closure(reduction, closure),) + args[1:]
        else:
            reduction.before_step(self._skips_synchronize)
        try:
            result = super().step(*args, **kwargs)
            reduction.stepped()
            return result
        finally:
            reduction.end_step()

    def _synchronized_closure(
            self, reduction: GradientReduction,
            closure: Callable[[], Any]) -> Callable[[], Any]:

        def run() -> Any:
            reduction.before_closure()
            loss = closure()
            reduction.before_step(self._skips_synchronize)
            # The loss decides how often LBFGS calls the closure, which must be
            # the same on all ranks.
            if isinstance(self, torch.optim.LBFGS):
                loss = reduction.reduced_loss(loss)
            return loss

        return run

    @not_compiled
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients.

        Gradients in buckets are zeroed in place and stay there, whatever
        set_to_none is. Raises AssertionError while gradients are being reduced.
        """
        reduction = self._attached()
        if reduction is None:
            super().zero_grad(*args, **kwargs)
            return
        with reduction.zeroing():
            super().zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, as the optimizer's own method does.

        The new gradients are reduced as well; ranks match them by their
        position.
        """
        super().add_param_group(param_group)
        if self._maypole is not None:
            self._maypole.follow_groups()

    def abandon(self) -> None:
        """Ends a step whose epoch is over.

        Waits for the reductions that are under way, whatever their outcome, and
        starts no others. The gradients are undefined then.
        """
        if self._maypole is not None:
            self._maypole.abandon()

    def passes_if_within_step(self) -> int:
        """Returns backward_passes_per_step if it is above 1 and some of the passes await step(); otherwise 0."""
        return 0 if self._maypole is None else self._maypole.passes_if_within_step()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Loads a state, as the optimizer's own method does, but first ends pending reductions."""
        reduction = self._attached()
        if reduction is not None:
            reduction.wake_anew()
            if not reduction.finish_pending():
                reduction.end_step()
        super().load_state_dict(*args, **kwargs)
        if reduction is not None:
            reduction.note_loaded()

    def _finish_pending(self) -> None:
        """Ends pending reductions, so that all ranks do so before some of them load a state.

        Passes left over from a step that is not complete, perhaps before a join(), are dropped: their number may differ
        between ranks.
        """
        reduction = self._attached()
        if reduction is not None:
            reduction.drop_incomplete()
            reduction.finish_pending()


def DistributedOptimizer(  # pylint: disable=invalid-name
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[tuple[str, torch.Tensor]]] = None,
        compression: Any = Compression.none,
        backward_passes_per_step: int = 1,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        sparse_as_dense: bool = False,
        process_set: Any = global_process_set,
        gradient_as_bucket_view: bool = False,
        bucket_cap_mb: float = 25.0) -> torch.optim.Optimizer:
    """Makes `optimizer` step on all ranks' gradients; returns it.

    It stays the same object, so that schedulers made before keep working; its
    class becomes a subclass of the former one with the methods synchronize(),
    skip_synchronize() and set_backward_passes_per_step(n). backward() starts an
    allreduce for each gradient as it is computed; step() waits for them, and so
    does the first access to a .grad between backward() and step(), for example
    to clip gradients. With one rank nothing is reduced. init() must have been
    called.

    named_parameters: model.named_parameters(); gradients are matched between
    ranks by these names; without it, by their position in the optimizer. Frozen parameters that
    the optimizer does not have are compared in the first step as well.
    compression: Compression.fp16 and bf16 send gradients in 16 bits;
    Compression.powersgd(rank) sends low-rank approximations of matrices, and cannot be
    combined with gradient_as_bucket_view.
    backward_passes_per_step: the number of passes over which gradients are summed locally.
    op: Average, Sum or Adasum. With Adasum each rank makes its own step, and the
    steps are combined (maypole.torch.adasum_optimizer).
    gradient_predivide_factor: with Average, gradients are divided by it before
    and multiplied by it after the sum (then divided by the number of ranks).
    num_groups: older name of groups. groups: None, a number, or lists of
    parameters; accepted, but without effect, because the coordinator groups
    operations itself.
    sparse_as_dense: True reduces sparse gradients as dense ones, which become sparse again
    afterwards unless they are in buckets; otherwise they are gathered.
    process_set: the ranks whose gradients are reduced. On a rank that is not in
    the set, the optimizer uses only the rank's own gradients.
    gradient_as_bucket_view: from the second step on, gradients are in buckets
    in the arena (maypole.torch.arena), or, for CUDA parameters, on their
    device, and backward() starts an allreduce of each bucket that is complete.
    .grad is a contiguous view of the rank's own bucket. Call zero_grad() of
    this optimizer, which zeroes in place. If .grad was replaced or set to None
    in another way, the gradient is copied into the bucket, and
    arena_statistics() counts it. Sparse gradients stay outside. With a
    compression other than none, the tensors sent are not in the arena; with a
    gradient_predivide_factor other than 1, the ranks make copies as well.
    bucket_cap_mb: the maximum size of a bucket, in MiB; the same on all ranks.

    Raises ValueError for wrong arguments; the text says what is expected.
    """
    basics.size()  # raises ValueError before init()
    process_sets.id_of(process_set)
    groups = training_arguments.groups_of(num_groups, groups)
    training_arguments.check_op(op)
    training_arguments.check_predivision(op, gradient_predivide_factor)
    training_arguments.check_passes(backward_passes_per_step)
    _check_members(groups)
    if not bucket_cap_mb > 0:
        raise ValueError(f"DistributedOptimizer: bucket_cap_mb={bucket_cap_mb},"
                         " expected a positive number")
    names, others = _parameter_names(optimizer, named_parameters)
    if isinstance(compression, PowerSGD) and (op == Adasum
                                              or gradient_as_bucket_view):
        raise ValueError("DistributedOptimizer: Compression.powersgd needs "
                         "op=Average or Sum, and gradients of their own shape; "
                         "leave op=Adasum and gradient_as_bucket_view out")
    options = Options(
        names, op, compression, backward_passes_per_step,
        gradient_predivide_factor, sparse_as_dense, process_set,
        int(bucket_cap_mb * 2**20) if gradient_as_bucket_view else None, others)
    # A rank that is alone in an elastic job may get company.
    if op == Adasum and process_set.included() and (process_set.size() > 1 or
                                                    basics.is_elastic()):
        return attach(optimizer, DistributedAdasumOptimizer, options)
    return attach(optimizer, _DistributedOptimizer, options)


def _check_members(groups: Any) -> None:
    if not isinstance(groups, (list, tuple)):
        return
    members = [parameter for group in groups for parameter in group]
    if not all(isinstance(parameter, torch.Tensor) for parameter in members):
        raise ValueError("DistributedOptimizer: groups must be lists of tensors")
    if len(set(map(id, members))) < len(members):
        raise ValueError("DistributedOptimizer: a parameter is in groups twice")


def _parameter_names(
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Any]]) -> tuple[dict[torch.Tensor, str], dict[torch.Tensor, str]]:
    """Returns the name of each parameter of `optimizer`, by which the ranks match it, and those of other parameters."""
    positions = {
        parameter: f"group{g}.{i}"
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    }
    if named_parameters is None:
        given = positions
    else:
        given = _checked_names(list(named_parameters), positions)
    for parameter in positions:
        if has_no_memory(parameter):
            raise ValueError(
                f"DistributedOptimizer: {given[parameter]!r} is a "
                f"{type(parameter).__name__}, expected a torch.Tensor or "
                "torch.nn.Parameter; what its class distributes, it must also "
                "reduce")
    others = {p: name for p, name in given.items() if p not in positions and not has_no_memory(p)}
    return {p: given[p] for p in positions}, others


def _checked_names(
        named: Any,
        positions: dict[torch.Tensor, str]) -> dict[torch.Tensor, str]:
    if not all(isinstance(entry, tuple) and len(entry) == 2 for entry in named):
        raise ValueError("named_parameters must be a sequence of (name, "
                         "parameter), such as model.named_parameters()")
    count: dict[str, int] = {}
    for name, _ in named:
        count[name] = count.get(name, 0) + 1
    duplicates = sorted(name for name, n in count.items() if n > 1)
    if duplicates:
        raise ValueError("names in named_parameters must be unique; found "
                         f"twice: {', '.join(duplicates)}")
    names = {parameter: name for name, parameter in named}
    unnamed = [place for p, place in positions.items() if p not in names]
    if unnamed:
        raise ValueError("named_parameters lacks parameters of the optimizer, "
                         f"at {', '.join(unnamed)}")
    return names
