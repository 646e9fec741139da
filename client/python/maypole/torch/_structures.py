"""Takes the tensors out of structures of dicts, lists and tuples, and puts them back.

    tensors = []
    skeleton = take_out(optimizer.state_dict(), tensors)   # can be pickled
    put_back(skeleton, other_tensors)

The tensors travel as tensors, the skeleton as a pickled object.

Thread contract: pure functions.
"""

from collections.abc import Iterator
from typing import Any

import torch


class TensorAt:
    """Stands for the i-th tensor in a state that is sent without tensors.

    device: only its type; ranks have different CUDA devices.
    """

    def __init__(self, index: int, tensor: torch.Tensor):
        self.index = index
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device.type

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, TensorAt) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{self.dtype} {list(self.shape)} ({self.device})"


# Keys of dicts and numbers in lists that lead to a tensor, and the tensor.
Place = tuple[tuple[Any, ...], TensorAt]


def take_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns `value` with its tensors replaced by TensorAt, and appends them to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TensorAt(len(tensors) - 1, value)
    if isinstance(value, dict):
        return {key: take_out(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(take_out(item, tensors) for item in value)
    return value


def specs_of(skeleton: Any) -> list[TensorAt]:
    """Returns the TensorAts of a skeleton from take_out(), by their index."""
    specs = [at for _, at in places(skeleton)]
    return sorted(specs, key=lambda at: at.index)


def places(skeleton: Any, path: tuple[Any, ...] = ()) -> Iterator[Place]:
    """Yields (path, TensorAt) for each TensorAt, in the order of take_out()."""
    if isinstance(skeleton, TensorAt):
        yield path, skeleton
    elif isinstance(skeleton, dict):
        for key, item in skeleton.items():
            yield from places(item, path + (key,))
    elif type(skeleton) in (list, tuple):
        for number, item in enumerate(skeleton):
            yield from places(item, path + (number,))


def put_back(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, TensorAt):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: put_back(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(put_back(item, tensors) for item in value)
    return value


def tensors_for(specs: list[TensorAt],
                optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Makes tensors to receive the optimizer's state.

    Each is on the device of the first parameter with the right type of device;
    torch moves the state from there to the device of its parameter.
    """
    devices: dict[str, torch.device] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            devices.setdefault(parameter.device.type, parameter.device)
    return [
        torch.empty(spec.shape, dtype=spec.dtype,
                    device=devices.get(spec.device, spec.device))
        for spec in specs
    ]
