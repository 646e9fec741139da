"""The training of TorchEstimator, in each rank."""

import inspect
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy
import torch

from maypole.common import objects


class Training(NamedTuple):
    """model: pickled. state: model's and optimizer's, by torch.save, with the learning rate for one rank.

    losses: the losses, or functions that make them.
    """

    model: bytearray
    optimizer_class: Any
    state: bytes
    losses: list[Any]
    are_constructors: bool
    loss_weights: list[float]
    metrics: list[Any]
    input_shapes: list[Any]
    label_shapes: Optional[list[Any]]
    compression: Any
    train_minibatch_fn: Any


def make_optimizer(kind: Any, model: Any, state: Any) -> Any:
    """Returns an optimizer of the model's parameters with this state.

    Some classes require an lr; the state then sets the right one.
    """
    needs_rate = "lr" in inspect.signature(kind).parameters
    optimizer = kind(model.parameters(), **({"lr": 1.0} if needs_rate else {}))
    optimizer.load_state_dict(state)
    return optimizer


def inputs_of(arrays: Sequence[numpy.ndarray],
              shapes: Optional[Sequence[Any]],
              device: Any = None) -> list[torch.Tensor]:
    """Returns the model's inputs, in float32. shapes: the shapes of a batch; None: rows as vectors."""
    out = []
    for i, array in enumerate(arrays):
        tensor = torch.tensor(array).float()
        out.append(tensor.reshape(shapes[i] if shapes else (len(array), -1)).to(device))
    return out


def labels_of(arrays: Sequence[numpy.ndarray], device: Any) -> list[torch.Tensor]:
    """Returns integers as int64, everything else as float32."""
    tensors = [torch.tensor(array) for array in arrays]
    return [(t.float() if t.is_floating_point() or t.dtype == torch.bool else t.long()).to(device) for t in tensors]


def fit_labels(outputs: Any, labels: list[torch.Tensor],
               shapes: Optional[Sequence[Any]]) -> tuple[list[Any], list[Any]]:
    """A label with as many elements as the output gets the output's shape and dtype, unless shapes are given."""
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    if shapes:
        return outputs, [label.reshape(shape) for label, shape in zip(labels, shapes)]
    return outputs, [
        label.reshape(output.shape).to(output.dtype) if output.numel() == label.numel() else label
        for output, label in zip(outputs, labels)
    ]


def loss_of(loss: Any, output: Any, label: Any, weights: Any) -> Any:
    """Returns the mean over the batch. weights: the samples' weights; None: all 1."""
    if weights is None:
        return loss(output, label)
    if hasattr(loss, "reduction"):  # a module
        before, loss.reduction = loss.reduction, "none"
        try:
            each = loss(output, label)
        finally:
            loss.reduction = before
    else:
        each = loss(output, label, reduction="none")
    return (each.reshape(len(weights), -1).mean(dim=1) * weights).mean()


def train_minibatch(model: Any, optimizer: Any, transform_outputs: Any, loss_fn: Any, inputs: list[Any],
                    labels: list[Any], sample_weights: Any) -> tuple[list[Any], Any]:
    """Makes one step; returns outputs and loss. train_minibatch_fn, with the same parameters, replaces it."""
    optimizer.zero_grad()
    outputs, labels = transform_outputs(model(*inputs), labels)
    loss = loss_fn(outputs, labels, sample_weights)
    loss.backward()
    optimizer.step()
    return outputs, loss


class _Means:
    """Sums of an epoch's losses and metrics, whose means over batches and ranks are the history's values."""

    def __init__(self, metrics: list[Any], labels: list[str]):
        # A list of lists: each entry is a group, whose functions apply to the labels in turn.
        self._groups = [list(group) if isinstance(group, (list, tuple)) else [group] for group in metrics]
        self._labels = labels
        self._sums = [0.0] * (1 + len(self._groups) * len(labels))
        self._count = 0

    def add(self, loss: Any, outputs: list[Any], labels: list[Any]) -> None:
        values = [loss]
        for group in self._groups:
            for i in range(len(self._labels)):
                function = group[i] if len(group) > 1 else group[0]
                values.append(function(outputs[i], labels[i]))
        for i, value in enumerate(values):
            self._sums[i] += float(value.detach() if hasattr(value, "detach") else value)
        self._count += 1

    def of_all_ranks(self, hvd: Any, name: str) -> dict[str, Any]:
        total = hvd.allreduce(torch.tensor(self._sums + [float(self._count)], dtype=torch.float64),
                              op=hvd.Sum,
                              name=name)
        means = (total[:-1] / total[-1]).tolist()
        groups = []
        for g in range(len(self._groups)):
            at = 1 + g * len(self._labels)
            groups.append({f"group_{g}_{label}": means[at + i] for i, label in enumerate(self._labels)})
        return {"loss": means[0], "all_metrics": groups}


def train(work: Any, training: Training) -> Any:
    """Runs in each rank. Rank 0 returns (history, state by torch.save), the others None."""
    import maypole.torch as hvd
    hvd.init()
    return _Run(hvd, work, training).run()


class _Run:
    """One rank's training."""

    def __init__(self, hvd: Any, work: Any, training: Training):
        self._hvd, self._work, self._training = hvd, work, training
        torch.manual_seed(work.seed + hvd.rank())
        self._device = _device(hvd, work.use_gpu)
        self._model = objects.loads(training.model).to(self._device)
        state = torch.load(io.BytesIO(training.state), map_location=self._device)
        self._model.load_state_dict(state["model"])
        optimizer = make_optimizer(training.optimizer_class, self._model, state["optimizer"])
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * hvd.size()
        hvd.broadcast_parameters(self._model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        more = {} if training.compression is None else {"compression": training.compression}
        self._optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=self._model.named_parameters(), **more)
        losses = training.losses
        self._losses = [make() for make in losses] if training.are_constructors else losses
        self._step = training.train_minibatch_fn or train_minibatch

    def run(self) -> Any:
        hvd, work = self._hvd, self._work
        steps, batches = work.train_batches(hvd.rank(), hvd.size())
        val_steps, val_batches = work.val_batches(hvd.rank(), hvd.size())
        history = []
        for epoch in range(work.epochs):
            entry = {"epoch": epoch, "train": self._epoch(batches(epoch), "train")}
            if val_steps:
                with torch.no_grad():
                    entry["validation"] = self._epoch(val_batches(epoch), "validation")
            history.append(entry)
            if hvd.rank() == 0:
                self._report(entry, history, steps)
        return (history, self._state()) if hvd.rank() == 0 else None

    def _epoch(self, batches: Any, phase: str) -> dict[str, Any]:
        work, is_training = self._work, phase == "train"
        self._model.train(is_training)
        means = _Means(self._training.metrics, work.label_cols)

        def fit(outputs: Any, labels: Any) -> Any:
            return fit_labels(outputs, labels, self._training.label_shapes)

        for batch in batches:
            inputs = inputs_of([batch[name] for name in work.feature_cols], self._training.input_shapes, self._device)
            labels = labels_of([batch[name] for name in work.label_cols], self._device)
            weights = None
            if work.sample_weight_col:
                weights = torch.tensor(batch[work.sample_weight_col]).float().to(self._device)
            if is_training:
                outputs, loss = self._step(self._model, self._optimizer, fit, self._loss, inputs, labels, weights)
            else:
                outputs, labels = fit(self._model(*inputs), labels)
                loss = self._loss(outputs, labels, weights)
            means.add(loss, *fit(outputs, labels))
        return means.of_all_ranks(self._hvd, phase)

    def _loss(self, outputs: list[Any], labels: list[Any], weights: Any) -> Any:
        parts = zip(self._losses, outputs, labels, self._training.loss_weights)
        return sum(loss_of(loss, output, label, weights) * share for loss, output, label, share in parts)

    def _state(self) -> bytes:
        """Returns the state, with the learning rate for one rank, and on the CPU."""
        state = self._optimizer.state_dict()
        groups = [dict(group, lr=group["lr"] / self._hvd.size()) for group in state["param_groups"]]
        model = {name: value.cpu() for name, value in self._model.state_dict().items()}
        stream = io.BytesIO()
        torch.save({"model": model, "optimizer": dict(state, param_groups=groups)}, stream)
        return stream.getvalue()

    def _report(self, entry: dict[str, Any], history: list[Any], steps: int) -> None:
        work = self._work
        if work.verbose:
            print(json.dumps(dict(entry, steps=steps)), flush=True)
        path = work.checkpoint_path()
        if path is not None:
            work.store.write(path, self._state())
            work.store.write_text(f"{work.store.get_logs_path(work.run_id)}/history.json", json.dumps(history))


def _device(hvd: Any, use_gpu: bool) -> Any:
    if not use_gpu or not torch.cuda.is_available():
        return torch.device("cpu")
    from maypole.spark.task import get_available_devices
    assigned = get_available_devices()
    number = int(assigned[0]) if assigned else hvd.local_rank() % torch.cuda.device_count()
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
