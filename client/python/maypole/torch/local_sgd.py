"""LocalSGD and DiLoCo: ranks train on their own, and agree after a number of steps.

    with hvd.LocalSGD(model, optimizer, sync_every=32):
        train(model, optimizer)                 # optimizer.step() as ever

    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with hvd.DiLoCo(model, optimizer, outer, sync_every=500):
        train(model, optimizer)

For slow links: a model of P bytes costs P bytes of network traffic every sync_every
steps, instead of in each step. LocalSGD averages the weights (Stich,
https://arxiv.org/abs/1805.09767). DiLoCo averages how far the ranks have moved from
the weights on which they last agreed, and an outer optimizer takes a step with this
average as its gradient (Douillard et al., https://arxiv.org/abs/2311.08105),
if asked to, fragment by fragment and while training continues (Streaming DiLoCo,
https://arxiv.org/abs/2501.18512).

The inner optimizer may be a DistributedOptimizer of a smaller process set: the
ranks of a node reduce their gradients in each step, and the nodes agree only every
sync_every steps.

Buffers, such as the means of batch norm, are not averaged.

Thread contract: the thread that calls optimizer.step(). Invariant: the weights
on which the ranks have agreed are equal on all ranks of the process set.
"""

import types
from collections.abc import Sequence
from typing import Any, Callable, Optional, Union

import torch

from maypole.common.constants import Average
from maypole.common.exceptions import HorovodInternalError
from maypole.common.process_sets import ProcessSet, global_process_set, id_of
from maypole.torch._gradients.equal_start import EqualStart
from maypole.torch.async_ops import grouped_allreduce_async_, synchronize
from maypole.torch.compression import Compression, Compressor, PowerSGD

_HALVES = (torch.float16, torch.bfloat16)


class LocalSGD:
    """Averages the weights of all ranks after every `sync_every` steps of the optimizer.

    A context manager; outside it the optimizer only steps. Ranks must make the same number of
    steps in it.

    Args:
        model: whose parameters are averaged.
        optimizer: whose steps are counted.
        sync_every: a positive number of steps, the same on all ranks.
        process_set: the ranks that average; all of them must train in this context.

    Raises:
        ValueError: for wrong arguments; the text says what is expected.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sync_every: int,
                 process_set: ProcessSet = global_process_set):
        id_of(process_set)
        _check_positive("LocalSGD", "sync_every", sync_every)
        self._parameters = list(model.parameters())
        self._process_set = process_set
        self._sync_every = sync_every
        self._steps = _StepHook(optimizer, self._on_step)
        self._step = 0

    def _on_step(self) -> None:
        self._step += 1
        if self._step == self._sync_every:
            self.sync()

    @torch.no_grad()
    def sync(self) -> None:
        """Averages the weights now, before an evaluation or at the training's end. All ranks must call it."""
        self._step = 0
        synchronize(grouped_allreduce_async_([p.data for p in self._parameters], name="maypole.local_sgd", op=Average,
                                             process_set=self._process_set))

    @property
    def is_synced(self) -> bool:
        """Whether no step was made since the weights were averaged: the time for an elastic state's commit()."""
        return self._step == 0

    def state_dict(self) -> dict[str, Any]:
        """What load_state_dict() takes."""
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from where state_dict() was called."""
        self._step = state["step"]

    def __enter__(self) -> "LocalSGD":
        self._steps.begin()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[types.TracebackType]) -> None:
        self._steps.end()


class DiLoCo:
    """Every `sync_every` steps of the inner optimizer, an outer optimizer steps with the mean of the ranks' progress.

    A context manager; outside it the inner optimizer only steps. Ranks must make the same number of steps in it
    (entered again, it continues where it was), and enter it with the same weights (broadcast_parameters()): the first
    agreement of each membership epoch compares weights, settings and the outer optimizer's state, and raises
    ValueError on every rank if they differ.

    Each parameter has a second copy with the weights on which the ranks have agreed, in float32 for 16-bit
    parameters. The outer optimizer's groups hold these copies from now on.

    With several fragments, the ranks agree on one of them every sync_every / fragments steps, in turn. With
    fragment_sync_delay, the reduction of a fragment begins that many steps earlier and runs while these steps are
    made.

    Args:
        fragments: a torch.nn.Module, or a list of modules that have no parameter in common.
        inner_optimizer: whose steps are counted.
        outer_optimizer: a torch optimizer of all parameters of the fragments and of no others. It gets as gradient
            the mean over the ranks of (agreed weights - own weights).
        sync_every: a number of steps, a multiple of the number of fragments; the same on all ranks.
        fragment_sync_delay: steps from the beginning of a reduction to the use of its result, less than
            sync_every / fragments.
        fragment_update_alpha: the share of its own weights that a rank keeps when it takes newly agreed ones, from
            0 to 1.
        compression: Compression.fp16 or bf16 send the progress in 16 bits.
        process_set: the ranks that agree; all of them must train in this context.
        backup_device: the device of the copies, on which the outer optimizer steps; None: that of the parameters.

    Raises:
        ValueError: for wrong arguments; the text says what is expected.
    """

    def __init__(self,
                 fragments: Union[torch.nn.Module, Sequence[torch.nn.Module]],
                 inner_optimizer: torch.optim.Optimizer,
                 outer_optimizer: torch.optim.Optimizer,
                 sync_every: int,
                 *,
                 fragment_sync_delay: int = 0,
                 fragment_update_alpha: float = 0.0,
                 compression: type[Compressor] = Compression.none,
                 process_set: ProcessSet = global_process_set,
                 backup_device: Optional[torch.device] = None):
        id_of(process_set)
        modules = [fragments] if isinstance(fragments, torch.nn.Module) else list(fragments)
        _check_positive("DiLoCo", "sync_every", sync_every)
        if not modules or sync_every % len(modules):
            raise ValueError(f"DiLoCo: sync_every={sync_every} with {len(modules)} fragments, expected a multiple of "
                             "the number of fragments")
        interval = sync_every // len(modules)
        if not 0 <= fragment_sync_delay < interval:
            raise ValueError(f"DiLoCo: fragment_sync_delay={fragment_sync_delay}, expected 0 to {interval - 1}, less "
                             "than sync_every / fragments")
        if not 0 <= fragment_update_alpha <= 1:
            raise ValueError(f"DiLoCo: fragment_update_alpha={fragment_update_alpha}, expected 0 to 1")
        if isinstance(compression, PowerSGD):
            raise ValueError("DiLoCo: Compression.powersgd keeps what it leaves out for the next step of each rank; "
                             "expected Compression.none, fp16 or bf16")
        names = _names(modules)
        agreed = _replace_parameters(outer_optimizer, names, backup_device)
        self._fragments = [
            _Fragment(f"maypole.diloco.{number}", [(p, agreed[p]) for p in module.parameters()], outer_optimizer,
                      fragment_update_alpha, compression, process_set) for number, module in enumerate(modules)
        ]
        self._outer = outer_optimizer
        self._names = {agreed[p]: name for p, name in names.items()}
        self._settings = {"sync_every": sync_every, "fragment_sync_delay": fragment_sync_delay,
                          "fragment_update_alpha": fragment_update_alpha}
        self._start = EqualStart(process_set, who="DiLoCo")
        self._interval, self._delay = interval, fragment_sync_delay
        self._steps = _StepHook(inner_optimizer, self._on_step)
        self._step, self._next = 0, 0  # steps in this interval; the fragment on which the ranks agree at its end
        self._is_synced = True

    def _on_step(self) -> None:
        self._is_synced = False
        self._step += 1
        fragment = self._fragments[self._next]
        # Also in later steps: a program may catch the error of one, and must not continue without agreeing.
        if self._step >= self._interval - self._delay:
            self._check_start()
            fragment.begin()
        if self._step >= self._interval:
            fragment.end()
            self._step, self._next = 0, (self._next + 1) % len(self._fragments)
            self._is_synced = len(self._fragments) == 1

    def sync(self) -> None:
        """Makes all ranks agree on all fragments now, before an evaluation or at the training's end.

        All ranks must call it. The next interval begins, with the first fragment. With a fragment_update_alpha the
        ranks' weights stay different.
        """
        self._check_start()
        for fragment in self._fragments:
            fragment.begin()
        for fragment in self._fragments:
            fragment.end()
        self._step = self._next = 0
        self._is_synced = True

    def _check_start(self) -> None:
        groups = [{**group, **self._settings} for group in self._outer.param_groups]
        outer: Any = types.SimpleNamespace(param_groups=groups, state=self._outer.state)
        error = self._start.check(outer, self._names, "maypole.diloco.start") or self._start.check_step(
            outer, self._names, "maypole.diloco.start", self._start.wanted)
        if error is not None:
            raise error

    @property
    def is_synced(self) -> bool:
        """Whether no step was made since the ranks agreed on all fragments at once: the time for a commit().

        With several fragments this is True only after sync(). With a fragment_update_alpha the ranks'
        weights differ even then: after a death all ranks continue from those of rank 0.
        """
        return self._is_synced

    def state_dict(self) -> dict[str, Any]:
        """What load_state_dict() takes: the agreed weights, the outer optimizer, the step.

        Waits for a reduction under way.
        """
        return {
            "step": self._step,
            "next": self._next,
            "is_synced": self._is_synced,
            "fragments": [fragment.state() for fragment in self._fragments],
            "outer": self._outer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from where state_dict() was called, and gives up a reduction that is under way."""
        self._step, self._next, self._is_synced = state["step"], state["next"], state["is_synced"]
        for fragment, of_fragment in zip(self._fragments, state["fragments"]):
            fragment.load(of_fragment)
        self._outer.load_state_dict(state["outer"])

    def __enter__(self) -> "DiLoCo":
        self._steps.begin()
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[types.TracebackType]) -> None:
        self._steps.end()
        if error is None:
            for fragment in self._fragments:
                fragment.wait()


class _Fragment:
    """Parameters on which the ranks agree together.

    pairs: each parameter, with the weights on which the ranks have agreed.

    Between begin() and end() either a reduction is under way (_handle) or its result
    is known (_mean).
    """

    def __init__(self, name: str, pairs: list[tuple[torch.Tensor, torch.Tensor]], outer: torch.optim.Optimizer,
                 alpha: float, compression: type[Compressor], process_set: ProcessSet):
        self._name = name
        self._pairs = pairs
        self._outer = outer
        self._alpha = alpha
        self._compression = compression
        self._process_set = process_set
        self._handle: Optional[int] = None
        self._contexts: list[Any] = []
        self._mean: Optional[list[torch.Tensor]] = None

    @torch.no_grad()
    def begin(self) -> None:
        """Starts the reduction, unless it is under way."""
        if self._handle is not None or self._mean is not None:
            return
        sent = [self._compression.compress(agreed - p.to(agreed)) for p, agreed in self._pairs]
        self._contexts = [context for _, context in sent]
        self._handle = grouped_allreduce_async_([tensor for tensor, _ in sent], name=self._name, op=Average,
                                                process_set=self._process_set)

    def wait(self) -> None:
        """Waits for a reduction that is under way; end() uses its result."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        self._mean = [self._compression.decompress(tensor, context)
                      for tensor, context in zip(synchronize(handle), self._contexts)]

    def end(self) -> None:
        """Waits for the result and steps the outer optimizer with it."""
        self.wait()
        assert self._mean is not None
        for (_, agreed), mean in zip(self._pairs, self._mean):
            agreed.grad = mean
        self._mean = None
        self._outer.step()
        with torch.no_grad():
            for p, agreed in self._pairs:
                agreed.grad = None  # so that the steps of other fragments do not change it
                if self._alpha == 0:
                    p.copy_(agreed)
                else:
                    p.copy_(torch.lerp(agreed, p.to(agreed), self._alpha))

    def state(self) -> dict[str, Any]:
        self.wait()
        mean = None if self._mean is None else [tensor.clone() for tensor in self._mean]
        return {"agreed": [agreed.detach().clone() for _, agreed in self._pairs], "mean": mean}

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        try:
            self.wait()
        except HorovodInternalError:  # of a membership epoch that is over
            pass
        for (_, agreed), saved in zip(self._pairs, state["agreed"]):
            agreed.copy_(saved)
        self._mean = None if state["mean"] is None else [tensor.clone() for tensor in state["mean"]]


class _StepHook:
    """Calls a function after each step of an optimizer, between begin() and end()."""

    def __init__(self, optimizer: torch.optim.Optimizer, function: Callable[[], None]):
        self._optimizer = optimizer
        self._function = function
        self._is_on = False

    def begin(self) -> None:
        self._is_on = True
        optimizer: Any = self._optimizer
        step = optimizer.step

        def step_and_agree(_: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            if self._is_on:
                self._function()
            return result

        self._before = vars(optimizer).get("step")
        # A method, because schedulers that are made from now on expect one.
        optimizer.step = self._own = types.MethodType(step_and_agree, optimizer)

    def end(self) -> None:
        self._is_on = False
        optimizer: Any = self._optimizer
        # A scheduler that was made meanwhile may have wrapped it: then the wrapper stays, without effect.
        if vars(optimizer).get("step") is self._own:
            if self._before is None:
                del optimizer.step
            else:
                optimizer.step = self._before


def _check_positive(who: str, what: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{who}: {what}={value!r}, expected a positive number of steps")


def _names(modules: list[torch.nn.Module]) -> dict[torch.Tensor, str]:
    """Returns the names of all parameters, the same on all ranks."""
    names: dict[torch.Tensor, str] = {}
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            name = name if len(modules) == 1 else f"{number}.{name}"
            if parameter in names:
                raise ValueError(f"DiLoCo: the parameter {name!r} is also {names[parameter]!r} of another fragment; "
                                 "put modules that share parameters into one torch.nn.ModuleList")
            names[parameter] = name
    return names


def _replace_parameters(outer: torch.optim.Optimizer, names: dict[torch.Tensor, str],
                        device: Optional[torch.device]) -> dict[torch.Tensor, torch.Tensor]:
    """Gives the outer optimizer copies of its parameters; returns the copy of each."""
    theirs = [p for group in outer.param_groups for p in group["params"]]
    missing = sorted(name for p, name in names.items() if p not in set(theirs))
    if missing or len(theirs) != len(names):
        raise ValueError(f"DiLoCo: the outer optimizer must have the parameters of all fragments, and no others; it "
                         f"has {len(theirs)}, the fragments {len(names)}" +
                         (f"; it lacks {', '.join(missing[:5])}" if missing else ""))
    if outer.state:
        raise ValueError("DiLoCo: the outer optimizer has stepped already; expected a new one, whose state comes with "
                         "DiLoCo.load_state_dict()")
    copies = {p: p.detach().to(device or p.device, torch.float32 if p.dtype in _HALVES else p.dtype, copy=True)
              for p in theirs}
    for group in outer.param_groups:
        group["params"] = [copies[p] for p in group["params"]]
    return copies
