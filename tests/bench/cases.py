"""The cases to measure: single tensors of given sizes, and ResNet-50's gradients.

The twin of cases.h. The number of rounds follows from a case's bytes alone,
never from a clock, so all ranks agree on it without asking each other.
"""

import dataclasses
import math
import re
from typing import List, Optional

import resnet50

FLOAT_BYTES = 4

# 4 B to 256 MiB, each four times the one before.
DEFAULT_SIZES = ("4,16,64,256,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,"
                 "64MiB,256MiB")

# Rounds of a case: so many that about this much is reduced, within bounds. A
# median wants several rounds, a person wants to see the end.
_BYTES_PER_CASE = 1 << 30
_MIN_ROUNDS = 5
_MAX_ROUNDS = 200

_UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}


@dataclasses.dataclass
class Case:
    """label: for people. tensors: float32; names unique over all cases."""
    label: str
    tensors: List[resnet50.Parameter]
    warmup: int = 0  # rounds before those that count
    rounds: int = 0

    @property
    def bytes(self) -> int:
        return FLOAT_BYTES * sum(math.prod(s) for _, s in self.tensors)


def parse_bytes(text: str) -> int:
    """"4", "64KiB", "1MiB", "1GiB"; raises ValueError."""
    match = re.fullmatch(r"([0-9]+)(GiB|MiB|KiB|)", text)
    if match is None:
        raise ValueError(f"'{text}' is not a number of bytes; expected for "
                         "example 4, 64KiB, 1MiB or 1GiB")
    return int(match.group(1)) * _UNITS.get(match.group(2), 1)


def bytes_text(count: int) -> str:
    """"4 B", "64 KiB", "1 MiB"; in bytes if not a whole number of them."""
    for suffix, factor in _UNITS.items():
        if count >= factor and count % factor == 0:
            return f"{count // factor} {suffix}"
    return f"{count} B"


def _parse_sizes(text: str) -> List[int]:
    sizes: List[int] = []
    for part in text.split(",") if text else []:
        count = parse_bytes(part)
        if count == 0 or count % FLOAT_BYTES != 0:
            raise ValueError(f"'{part}': a size must be a positive multiple "
                             "of 4 bytes (the tensors are float32)")
        if count in sizes:
            raise ValueError(f"'{part}': this size is given twice")
        sizes.append(count)
    return sizes


def _set_rounds(case: Case, rounds: int) -> None:
    if rounds == 0:
        rounds = min(max(_BYTES_PER_CASE // case.bytes, _MIN_ROUNDS),
                     _MAX_ROUNDS)
    case.rounds = rounds
    case.warmup = max(2, rounds // 10)


def make_cases(sizes: str = DEFAULT_SIZES,
               max_bytes: Optional[str] = None,
               rounds: int = 0,
               resnet: bool = True) -> List[Case]:
    """rounds: for every case; 0: chosen by the case's bytes. Raises ValueError."""
    if rounds < 0:
        raise ValueError(f"{rounds} rounds: expected a positive number, or 0 "
                         "for as many as fit the size")
    found = [
        Case(bytes_text(count),
             [(f"bench.{count}", (count // FLOAT_BYTES,))])
        for count in _parse_sizes(sizes)
    ]
    if resnet:
        found.append(
            Case("ResNet-50", [("bench.resnet50." + name, shape)
                               for name, shape in resnet50.parameters()]))
    if max_bytes:
        limit = parse_bytes(max_bytes)
        found = [case for case in found if case.bytes <= limit]
    if not found:
        raise ValueError("no size is left to be measured")
    for case in found:
        _set_rounds(case, rounds)
    return found


def list_text(found: List[Case]) -> str:
    """One line per case, then one per tensor of it, indented."""
    lines = []
    for case in found:
        lines.append(f"{case.label}: {case.bytes} bytes in "
                     f"{len(case.tensors)} tensors, {case.warmup} + "
                     f"{case.rounds} rounds\n")
        lines += [f"  {name} {list(shape)}\n" for name, shape in case.tensors]
    return "".join(lines)
