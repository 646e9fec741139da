"""DistributedOptimizer: any torch optimizer, with gradients of all ranks.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters())
    loss.backward()      # starts an allreduce per gradient, as they come
    optimizer.step()     # waits for them, then steps

Thread contract: as torch's optimizers, one thread at a time.

Invariants: between the first hook after a step and synchronize(), `_pending`
has an entry per parameter whose gradient came; its reduction is None while
backward passes are still awaited. All parameters are reduced at each
synchronize(), so that ranks whose graphs differ cannot wait for each other.
"""

import contextlib
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, Optional, Tuple

import torch

from maypole.common import basics, process_sets
from maypole.common.constants import Adasum, Average, OP_NAMES, Sum
from maypole.common.process_sets import global_process_set
from maypole.torch._hooks import on_gradient
from maypole.torch.async_ops import allreduce_async_, synchronize
from maypole.torch.compression import Compression
from maypole.torch.sparse import sparse_allreduce_async

_NAME_PREFIX = "DistributedOptimizer"


class _Reducer:
    """How one gradient is reduced; starts it and gives what ends it."""

    def __init__(self, compression: Any, op: int, predivide: float,
                 sparse_as_dense: bool):
        self.compression = compression
        self.op = op
        # Average is a sum divided by size; this splits that division in two.
        self.prescale = 1.0 / predivide
        self.postscale = predivide
        self.sparse_as_dense = sparse_as_dense

    def start(self, parameter: torch.Tensor, name: str) -> Callable[[], None]:
        """Starts reducing parameter.grad; the result waits and stores it."""
        if parameter.grad is None:
            # Another rank may have used this parameter.
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_sparse:
            if not self.sparse_as_dense:
                return self._start_sparse(parameter, name)
            parameter.grad = parameter.grad.to_dense()
        grad = parameter.grad
        if grad.requires_grad:
            raise AssertionError(
                f"the gradient of {name!r} is part of a graph itself; "
                "DistributedOptimizer cannot be used with backward("
                "create_graph=True)")
        small, ctx = self.compression.compress(grad)
        handle = allreduce_async_(small, None, name, self.op, self.prescale,
                                  self.postscale)

        def finish() -> None:
            result = self.compression.decompress(synchronize(handle), ctx)
            if result is not grad:
                with torch.no_grad():
                    grad.copy_(result)

        return finish

    def _start_sparse(self, parameter: torch.Tensor,
                      name: str) -> Callable[[], None]:
        wait = sparse_allreduce_async(parameter.grad, name, self.op)

        def finish() -> None:
            parameter.grad = wait()

        return finish


class _DistributedOptimizer(torch.optim.Optimizer):
    """Put before an optimizer's class by DistributedOptimizer()."""

    # pylint: disable=super-init-not-called
    def _attach(self, names: Dict[torch.Tensor, str], reducer: _Reducer,
                backward_passes_per_step: int) -> None:
        self.backward_passes_per_step = backward_passes_per_step
        self._names = names
        self._reducer = reducer
        self._synchronized = False
        self._should_synchronize = True
        self._pending: Dict[torch.Tensor, Optional[Callable[[], None]]] = {}
        # Backward passes still to come before a gradient is reduced.
        self._passes_left: Dict[torch.Tensor, int] = {}
        self._hooks = []
        self._distributed = basics.size() > 1
        self._watch_parameters()

    def _watch_parameters(self) -> None:
        """Hooks the parameters that need gradients and have no hook yet."""
        if not self._distributed:
            return
        # Weak: an optimizer that was replaced must not go on reducing.
        method = weakref.WeakMethod(self._on_grad)

        def hook(parameter: torch.Tensor) -> None:
            on_grad = method()
            if on_grad is not None:
                on_grad(parameter)

        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._passes_left:
                self._passes_left[parameter] = self.backward_passes_per_step
                self._hooks.append(on_gradient(parameter, hook))

    def _on_grad(self, parameter: torch.Tensor) -> None:
        if self._passes_left[parameter] <= 0:
            raise AssertionError(
                f"the gradient of {self._names[parameter]!r} was computed more "
                f"than backward_passes_per_step={self.backward_passes_per_step}"
                " times before step(); increase backward_passes_per_step to "
                "accumulate gradients locally")
        self._passes_left[parameter] -= 1
        self._pending[parameter] = None
        self._synchronized = False
        if self._passes_left[parameter] == 0:
            self._start(parameter)

    def _start(self, parameter: torch.Tensor) -> None:
        self._pending[parameter] = self._reducer.start(parameter,
                                                       self._names[parameter])

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes are accumulated locally before a step."""
        self.backward_passes_per_step = passes
        self._reset_passes()

    def _reset_passes(self) -> None:
        for parameter in self._passes_left:
            self._passes_left[parameter] = self.backward_passes_per_step

    def synchronize(self) -> None:
        """Waits until all gradients are reduced; .grad then has the results.

        Gradients no hook has started are reduced too (zeros where there is
        none). Raises the first HorovodInternalError after all have ended; the
        gradients are undefined then, and the optimizer stays usable.
        """
        first_error = None
        self._watch_parameters()  # of those unfrozen since
        for parameter in self._passes_left:
            if (self._pending.get(parameter) is None
                    and parameter.requires_grad):
                self._start(parameter)
        for parameter, finish in list(self._pending.items()):
            try:
                if finish is not None:
                    finish()
            except RuntimeError as error:
                first_error = first_error or error
            del self._pending[parameter]
        self._reset_passes()
        self._synchronized = True
        if first_error is not None:
            raise first_error

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In it, step() does not synchronize: synchronize() was called.

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

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Waits for the gradients' reduction, then steps.

        With a closure, gradients are reduced after each time it is called.
        """
        if closure is not None:
            return super().step(self._synchronized_closure(closure))
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "step() after synchronize() reduces the gradients a second "
                    "time; call step() within optimizer.skip_synchronize()")
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
            return loss

        return run

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears the gradients. AssertionError while they are being reduced."""
        if self._pending:
            raise AssertionError(
                "zero_grad() was called after backward() and before step() or "
                "synchronize(), while gradients are being reduced; call step() "
                "or synchronize() first")
        super().zero_grad(*args, **kwargs)

    # torch wraps the step of an optimizer's class to profile it and to call
    # step hooks; the wrapped class's own step is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As the optimizer's own; the new gradients are reduced too, matched
        between ranks by their position."""
        super().add_param_group(param_group)
        group = len(self.param_groups) - 1
        for i, parameter in enumerate(self.param_groups[-1]["params"]):
            self._names[parameter] = f"{_NAME_PREFIX}.group{group}.{i}"
        self._watch_parameters()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own; first ends reductions that are pending."""
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
        process_set: Any = global_process_set) -> torch.optim.Optimizer:
    """Returns an optimizer like `optimizer` that steps on all ranks' gradients.

    It shares parameters, options and state with `optimizer` and is an instance
    of its class, with the methods synchronize(), skip_synchronize() and
    set_backward_passes_per_step(n). backward() starts an allreduce for each
    gradient as it is computed; step() waits for them. With one rank nothing is
    reduced. init() must have been called.

    named_parameters: model.named_parameters(); gradients are matched between
    ranks by these names. Without it, by their position in the optimizer.
    compression: Compression.fp16 sends gradients as float16.
    backward_passes_per_step: gradients are summed locally over so many passes.
    op: Average or Sum. Adasum is not there yet (NotImplementedError).
    gradient_predivide_factor: with Average, gradients are divided by it before
    and multiplied by it after the sum (then divided by the number of ranks).
    num_groups: older name of groups. groups: None, a number, or lists of
    parameters; accepted, and without effect: the coordinator groups by itself.
    sparse_as_dense: sparse gradients are reduced as dense ones, otherwise by
    gathering.

    Raises ValueError for wrong arguments, each naming what is expected.
    """
    process_sets.check(process_set)
    if num_groups != 0:
        warnings.warn("num_groups is deprecated, use groups",
                      DeprecationWarning)
        groups = num_groups if groups is None else groups
    _check_arguments(op, gradient_predivide_factor, backward_passes_per_step,
                     groups)
    names = _parameter_names(optimizer, named_parameters)
    base = optimizer.__class__
    wrapped_class = type(base.__name__, (_DistributedOptimizer, base), {})
    wrapped = wrapped_class.__new__(wrapped_class)
    wrapped.__dict__.update(optimizer.__dict__)
    # A learning rate scheduler may have put its own over the class's.
    wrapped.__dict__.pop("step", None)
    wrapped._attach(
        names,
        _Reducer(compression, op, gradient_predivide_factor, sparse_as_dense),
        backward_passes_per_step)
    return wrapped


def _check_arguments(op: int, predivide: float, passes: int,
                     groups: Any) -> None:
    if op == Adasum:
        raise NotImplementedError(
            "DistributedOptimizer(op=Adasum) is not there yet; use Average")
    if op not in (Average, Sum):
        raise ValueError(f"DistributedOptimizer: op={OP_NAMES.get(op, op)}, "
                         "expected Average or Sum")
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
        raise ValueError("DistributedOptimizer: groups must be None, a number "
                         "from 0 on, or a list of lists of tensors")


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
