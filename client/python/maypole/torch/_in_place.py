"""Loads an optimizer's state without replacing objects that others refer to.

torch's load_state_dict() makes new dicts for the parameter groups and for the
state. Code that holds an old one (a scheduler's closure, a program's `group =
optimizer.param_groups[0]`) continues with values that nobody uses. If that happens
on some ranks only, the ranks differ. It also casts floating-point state to the
dtype of its parameter, which may not be the dtype that the state had on its rank
(mu and eta of ASGD, mu_product of NAdam).

Thread contract: one thread at a time.
"""

from typing import Any

import torch


def load_state_dict(optimizer: torch.optim.Optimizer,
                    state_dict: dict[str, Any]) -> None:
    """optimizer.load_state_dict(), but keeps objects to which others may refer.

    These are the group dicts, the state's dicts, and tensors in them of equal
    shape, dtype and device. dtypes become those that state_dict has.
    """
    groups, state = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict(state_dict)
    _restore_dtypes(optimizer, state_dict)
    _fill_list(groups, optimizer.param_groups)
    if optimizer.state is not state:
        _fill(state, optimizer.state)
    optimizer.param_groups, optimizer.state = groups, state


def _restore_dtypes(optimizer: torch.optim.Optimizer,
                    state_dict: dict[str, Any]) -> None:
    """Undoes the casts of load_state_dict()."""
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"]):
        for parameter, key in zip(group["params"], saved["params"]):
            wanted = state_dict["state"].get(key, {})
            state = optimizer.state.get(parameter, {})
            for name, value in wanted.items():
                now = state.get(name)
                if (isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor)
                        and now.dtype != value.dtype):
                    state[name] = value.detach().clone().to(now.device)


def _fill_list(old: list[Any], new: list[Any]) -> None:
    if old is not new:
        old[:] = [_merged(a, b) for a, b in zip(old, new)] + new[len(old):]


def _fill(old: Any, new: Any) -> None:
    """Makes the dict `old` equal to `new`."""
    for key in list(old):
        if key not in new:
            del old[key]
    for key, value in new.items():
        old[key] = _merged(old[key], value) if key in old else value


def _merged(old: Any, new: Any) -> Any:
    """Returns `new`, written into the object `old` if that can hold it."""
    if old is new:
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        _fill(old, new)
        return old
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        if (old.shape == new.shape and old.dtype == new.dtype
                and old.device == new.device and old.layout == new.layout
                and not old.requires_grad):
            with torch.no_grad():
                old.copy_(new)
            return old
    return new
