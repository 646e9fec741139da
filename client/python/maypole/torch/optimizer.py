"""DistributedOptimizer: any torch optimizer, with gradients of all ranks.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters())
    loss.backward()      # starts an allreduce of each gradient when it is ready
    optimizer.step()     # waits for them, then steps

Thread contract: as torch's optimizers, one thread at a time.

Invariants: between the first hook after a step and synchronize(), `_pending`
has an entry for each parameter whose gradient has been computed; the entry is
None while more backward passes are expected. Each synchronize() reduces all
parameters, so that ranks with different graphs do not wait for each other
forever (_layouts has what such a rank contributes).

With gradient_as_bucket_view, the gradient of a new parameter is reduced alone
in its first step. After that all ranks know which gradients are sparse, and the
others go into buckets. After an error the ranks' buckets could differ, because
ranks may see different errors; so after any error, and in a new epoch, the
buckets are built again.
"""

import contextlib
import warnings
import weakref
from typing import (Any, Callable, Dict, Iterable, Iterator, Optional, Set,
                    Tuple)

import torch

from maypole.common import basics, process_sets
from maypole.common.constants import Adasum, Average, OP_NAMES, Sum
from maypole.common.process_sets import global_process_set
from maypole.torch._buckets import Bucket, Buckets
from maypole.torch._compiling import not_compiled
from maypole.torch._hooks import on_gradient
from maypole.torch._reducer import Reducer
from maypole.torch.adasum_optimizer import DistributedAdasumOptimizer
from maypole.torch.compression import Compression, PowerSGD

_NAME_PREFIX = "DistributedOptimizer"
# No parameter can be called so.
_LAYOUTS = f"{_NAME_PREFIX}:layouts"
_LOSS = f"{_NAME_PREFIX}:loss"

# With two optimizers, as in a GAN, the generator's backward() also computes
# gradients of the discriminator.
_OTHER_OPTIMIZER_HINT = (
    "if these gradients come from the loss of another optimizer (as in a GAN), "
    "keep its backward() away from these parameters: requires_grad_(False) on "
    "them before it, requires_grad_(True) after it")


class _DistributedOptimizer(torch.optim.Optimizer):
    """The methods that DistributedOptimizer() adds to an optimizer's class."""

    # pylint: disable=super-init-not-called
    def _attach(self, names: Dict[torch.Tensor, str], reducer: Reducer,
                backward_passes_per_step: int,
                buckets: Optional[Buckets]) -> None:
        self.backward_passes_per_step = backward_passes_per_step
        self._names = names
        self._reducer = reducer
        self._synchronized = False
        self._should_synchronize = True
        # By parameter or bucket: the function that ends its reduction.
        self._pending: Dict[Any, Optional[Callable[[], None]]] = {}
        # Backward passes still to come before a gradient is reduced.
        self._passes_left: Dict[torch.Tensor, int] = {}
        self._hooks = []
        self._buckets = buckets
        # Parameters that are in a bucket or will never be in one.
        self._settled: Set[torch.Tensor] = set()
        self._joins = basics.joins()
        process_set = reducer.process_set
        # A rank that is alone in an elastic job may get company.
        self._distributed = process_set.included() and (
            process_set.size() > 1 or basics.is_elastic())
        self._watch_parameters()

    def _watch_parameters(self) -> None:
        """Adds a hook to each parameter that needs a gradient and has none."""
        fresh = [
            p for p in self._names
            if p.requires_grad and p not in self._passes_left
        ]
        if not self._distributed or not fresh:
            return
        # Weak, so that an optimizer that was replaced stops reducing.
        method = weakref.WeakMethod(self._on_grad)

        @not_compiled
        def hook(parameter: torch.Tensor) -> None:
            on_grad = method()
            if on_grad is not None:
                on_grad(parameter)

        for parameter in fresh:
            self._passes_left[parameter] = self.backward_passes_per_step
            self._hooks.append(on_gradient(parameter, hook))

    def _on_grad(self, parameter: torch.Tensor) -> None:
        if self._passes_left[parameter] <= 0:
            raise AssertionError(
                f"the gradient of {self._names[parameter]!r} was computed more "
                f"than backward_passes_per_step={self.backward_passes_per_step}"
                " times before step(); increase backward_passes_per_step to "
                f"accumulate gradients locally; {_OTHER_OPTIMIZER_HINT}")
        self._passes_left[parameter] -= 1
        if not self._pending:
            self._follow_epoch()
        self._pending[parameter] = None
        self._synchronized = False
        if self._passes_left[parameter] > 0:
            return
        bucket = self._bucket_of(parameter)
        if bucket is None:
            self._start(parameter)
            return
        bucket.computed()
        if bucket.missing == 0:
            self._start_bucket(bucket)

    def _start(self, parameter: torch.Tensor) -> None:
        self._pending[parameter] = self._reducer.start(parameter,
                                                       self._names[parameter])

    def _bucket_of(self, parameter: torch.Tensor) -> Optional[Bucket]:
        return (None
                if self._buckets is None else self._buckets.of(parameter))

    def _start_bucket(self, bucket: Bucket) -> None:
        bucket.gather()
        self._pending[bucket] = self._reducer.start_bucket(bucket)

    def _fill_buckets(self) -> None:
        """Moves gradients that were reduced alone into buckets."""
        if self._buckets is None:
            return
        fresh = [
            p for p in self._passes_left
            if p not in self._settled and p.requires_grad
            and p.grad is not None
        ]
        self._settled.update(fresh)
        self._buckets.add([
            p for p in fresh
            if p.grad.layout is torch.strided and p.grad.numel() > 0
        ], self._names)

    def _forget(self) -> None:
        """Begins again as in the first step."""
        self._reducer.forget()
        if self._buckets is not None:
            self._buckets.drop()
            self._settled.clear()

    def _follow_epoch(self) -> None:
        # Buckets of an earlier epoch are not in this epoch's shared memory, and
        # its ranks were others.
        if self._joins != basics.joins():
            self._joins = basics.joins()
            self._forget()

    def _first_pending(self) -> str:
        first = next(iter(self._pending))
        return first.name if isinstance(first, Bucket) else self._names[first]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes are accumulated locally per step."""
        self.backward_passes_per_step = passes
        self._reset_passes()

    def _reset_passes(self) -> None:
        for parameter in self._passes_left:
            self._passes_left[parameter] = self.backward_passes_per_step
        for bucket in self._buckets or ():
            bucket.reset()

    @not_compiled
    def synchronize(self) -> None:
        """Waits until all gradients are reduced; .grad then has the results.

        Also reduces gradients that no hook has started. A missing gradient
        counts as zeros; a gradient that no rank has ever had stays None. If
        reductions fail, waits for all of them and then
        raises the first error; the gradients are undefined then, but the
        optimizer can still be used.
        """
        first_error = None
        self._watch_parameters()  # in case some were unfrozen
        try:
            self._start_the_rest()
        except RuntimeError as error:
            first_error = error
        for key, finish in list(self._pending.items()):
            try:
                if finish is not None:
                    finish()
            except RuntimeError as error:
                first_error = first_error or error
            del self._pending[key]
        self._reset_passes()
        self._synchronized = True
        if first_error is not None:
            self._forget()
            raise first_error
        self._fill_buckets()

    def _start_the_rest(self) -> None:
        if not self._distributed:
            return
        if not self._pending:
            self._follow_epoch()
        for bucket in self._buckets or ():
            if bucket not in self._pending and bucket.active():
                self._start_bucket(bucket)
        alone = [
            p for p in self._passes_left
            if p.requires_grad and self._bucket_of(p) is None
        ]
        self._reducer.learn_layouts(alone, _LAYOUTS)
        for parameter in alone:
            if (self._pending.get(parameter) is None
                    and self._reducer.is_used(parameter)):
                self._start(parameter)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which step() does not call synchronize() again.

            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    @not_compiled
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Waits until the gradients are reduced, then steps.

        With a closure, gradients are reduced after each call of the closure. For
        LBFGS the loss is reduced, too.
        """
        if closure is not None:
            return super().step(self._synchronized_closure(closure))
        if self._should_synchronize:
            if self._synchronized:
                # Up to the comma: the words that scripts look for.
                warnings.warn(
                    "optimizer.step() called without optimizer."
                    "skip_synchronize(), but after synchronize(): the gradients "
                    "are reduced a second time; call step() within the context "
                    "optimizer.skip_synchronize()")
            self.synchronize()
        self._synchronized = False
        return super().step()

    def _synchronized_closure(
            self, closure: Callable[[], Any]) -> Callable[[], Any]:

        def run() -> Any:
            if self._pending:
                self.synchronize()
            loss = closure()
            if self._should_synchronize:
                self.synchronize()
            self._synchronized = False
            # LBFGS decides by the loss how often it calls the closure, which
            # must be equally often on all ranks.
            if self._distributed and isinstance(self, torch.optim.LBFGS):
                loss = self._reducer.reduced_loss(loss, _LOSS)
            return loss

        return run

    @not_compiled
    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients.

        Gradients in buckets are zeroed in place and stay there, whatever
        set_to_none is. Raises AssertionError while gradients are being reduced.
        """
        if self._pending:
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or "
                f"synchronize(), while gradients are being reduced ("
                f"{self._first_pending()!r} among them); call step() or "
                f"synchronize() first; {_OTHER_OPTIMIZER_HINT}")
        if self._buckets is None:
            super().zero_grad(*args, **kwargs)
            return
        self._buckets.detach()
        super().zero_grad(*args, **kwargs)
        self._buckets.zero()

    # torch wraps step() of every optimizer class to profile it and to call step
    # hooks. This marks ours as wrapped, because the base class's step() is.
    step.hooked = True  # type: ignore[attr-defined]

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As the optimizer's own. The new gradients are reduced too; they are
        matched between ranks by their position."""
        super().add_param_group(param_group)
        group = len(self.param_groups) - 1
        for i, parameter in enumerate(self.param_groups[-1]["params"]):
            self._names[parameter] = f"{_NAME_PREFIX}.group{group}.{i}"
        self._watch_parameters()

    def abandon(self) -> None:
        """Ends a step whose epoch is over: waits for the reductions that are
        under way, whatever their outcome, and starts no others. The gradients
        are undefined then."""
        for finish in self._pending.values():
            with contextlib.suppress(RuntimeError):
                if finish is not None:
                    finish()
        self._pending.clear()
        self._reset_passes()
        self._forget()
        self._synchronized = False

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own, but first ends pending reductions."""
        if self._pending:
            self.synchronize()
        self._synchronized = False
        super().load_state_dict(*args, **kwargs)


def DistributedOptimizer(  # pylint: disable=invalid-name
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
        compression: Any = Compression.none,
        backward_passes_per_step: int = 1,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        sparse_as_dense: bool = False,
        process_set: Any = global_process_set,
        gradient_as_bucket_view: bool = False,
        bucket_cap_mb: float = 25.0) -> torch.optim.Optimizer:
    """Returns an optimizer like `optimizer` that steps on all ranks' gradients.

    It shares parameters, options and state with `optimizer` and is an instance
    of its class, with the methods synchronize(), skip_synchronize() and
    set_backward_passes_per_step(n). backward() starts an allreduce for each
    gradient as it is computed; step() waits for them. With one rank nothing is
    reduced. init() must have been called.

    named_parameters: model.named_parameters(); gradients are matched between
    ranks by these names, or without it by their position in the optimizer.
    compression: Compression.fp16 and bf16 send gradients in 16 bits;
    Compression.powersgd(rank) sends low-rank approximations of matrices, not
    together with gradient_as_bucket_view.
    backward_passes_per_step: over how many passes gradients are summed locally.
    op: Average, Sum or Adasum. With Adasum each rank makes its own step, and the
    steps are combined (maypole.torch.adasum_optimizer).
    gradient_predivide_factor: with Average, gradients are divided by it before
    and multiplied by it after the sum (then divided by the number of ranks).
    num_groups: older name of groups. groups: None, a number, or lists of
    parameters; accepted, but without effect, because the coordinator groups
    operations itself.
    sparse_as_dense: reduce sparse gradients as dense ones; otherwise they are
    gathered. Afterwards they are sparse again, unless they are in buckets.
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
    gradient_predivide_factor other than 1, the ranks make copies, too.
    bucket_cap_mb: the maximum size of a bucket, in MiB; the same on all ranks.

    Raises ValueError for wrong arguments; the text says what is expected.
    """
    basics.size()  # raises ValueError before init()
    process_sets.id_of(process_set)
    if num_groups != 0:
        warnings.warn("num_groups is deprecated, use groups",
                      DeprecationWarning)
        groups = num_groups if groups is None else groups
    _check_arguments(op, gradient_predivide_factor, backward_passes_per_step,
                     groups)
    if not bucket_cap_mb > 0:
        raise ValueError(f"DistributedOptimizer: bucket_cap_mb={bucket_cap_mb},"
                         " expected a positive number")
    names = _parameter_names(optimizer, named_parameters)
    if isinstance(compression, PowerSGD) and (op == Adasum
                                              or gradient_as_bucket_view):
        raise ValueError("DistributedOptimizer: Compression.powersgd needs "
                         "op=Average or Sum, and gradients of their own shape; "
                         "leave op=Adasum and gradient_as_bucket_view out")
    # A rank that is alone in an elastic job may get company.
    if op == Adasum and process_set.included() and (process_set.size() > 1 or
                                                    basics.is_elastic()):
        return _wrapped(optimizer, DistributedAdasumOptimizer, compression,
                        backward_passes_per_step, process_set)
    return _wrapped(
        optimizer, _DistributedOptimizer,
        names,
        Reducer(compression, op, gradient_predivide_factor, sparse_as_dense,
                 not gradient_as_bucket_view, process_set),
        backward_passes_per_step,
        Buckets(int(bucket_cap_mb * 2**20)) if gradient_as_bucket_view else None)


def _wrapped(optimizer: torch.optim.Optimizer, methods: type,
             *arguments: Any) -> Any:
    """An optimizer of the same class, with the class's methods overridden by
    `methods`, whose _attach() gets the arguments."""
    base = optimizer.__class__
    wrapped_class = type(base.__name__, (methods, base), {})
    wrapped = wrapped_class.__new__(wrapped_class)
    wrapped.__dict__.update(optimizer.__dict__)
    # A learning rate scheduler may have set a `step` on the instance.
    wrapped.__dict__.pop("step", None)
    wrapped._attach(*arguments)
    return wrapped


def _check_arguments(op: int, predivide: float, passes: int,
                     groups: Any) -> None:
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"DistributedOptimizer: op={OP_NAMES.get(op, op)}, "
                         "expected Average, Sum or Adasum")
    if predivide != 1.0 and op != Average:
        raise ValueError(
            f"DistributedOptimizer: gradient_predivide_factor={predivide} "
            f"needs op=Average, got {OP_NAMES[op]}")
    if passes < 1:
        raise ValueError("DistributedOptimizer: backward_passes_per_step="
                         f"{passes}, expected at least 1")
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return
    if not isinstance(groups, list) or not all(
            isinstance(group, (list, tuple)) and all(
                isinstance(p, torch.Tensor) for p in group)
            for group in groups):
        raise ValueError("DistributedOptimizer: groups must be None, a "
                         "non-negative integer, or a list of lists of tensors")
    members = [id(p) for group in groups for p in group]
    if len(set(members)) < len(members):
        raise ValueError("DistributedOptimizer: a parameter is in groups twice")


def _parameter_names(
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Any]]) -> Dict[torch.Tensor, str]:
    """The operation's name for each parameter of `optimizer`."""
    positions = {
        parameter: f"group{g}.{i}"
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    }
    if named_parameters is None:
        given = positions
    else:
        given = _checked_names(list(named_parameters), positions)
    return {p: f"{_NAME_PREFIX}.{given[p]}" for p in positions}


def _checked_names(named: Any, positions: Dict[torch.Tensor, str]):
    if not all(isinstance(entry, tuple) and len(entry) == 2 for entry in named):
        raise ValueError("named_parameters must be a sequence of (name, "
                         "parameter), such as model.named_parameters()")
    count: Dict[str, int] = {}
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
