"""Whether the ends of a program on all ranks are allowed: judge().

Allowed are
* all ranks have the same bits after every step, and the values of one process, up to rounding;
* if the recipe has a value of recipe.REFUSABLE: an error on every rank, before a step that would have been wrong, of a
  kind that Maypole raises on purpose, and at least one names a parameter or an operation. The ranks that did not find
  the cause themselves say which rank has ended; with by_hand="kept" each tells the cause.

An end is what player.py answers; None: the rank has not answered, because it hangs or has died.

Thread contract: pure functions.
"""

import math
import re
from typing import Any, Dict, List, Optional

from recipe import UNEQUAL, Recipe

# (relative, absolute) differences for which rounding is responsible.
_TOLERANCES = {"float64": (1e-6, 1e-8), "float32": (2e-4, 2e-5), "bfloat16": (5e-2, 2e-2)}
# How much more rounding a program on ranks has than one that began with other last bits: it rounds in every step.
_NUDGES = 100
_COMPRESSED = {"fp16": (5e-3, 2e-3), "bf16": (2e-2, 1e-2)}

_NAMED = re.compile(r"'[^']*(body|head|branch|group\d|lr|DistributedOptimizer|state)[^']*'|parameter")


def groups_of(recipe: Recipe, size: int) -> List[List[int]]:
    """The ranks that train together; each group has a reference of its own."""
    if recipe.subset and size > 1:
        return [list(range(size - 1)), [size - 1]]
    return [list(range(size))]


def _distance(a: float, b: float, tolerance) -> float:
    """How far apart they are, in tolerances."""
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
        return 0.0 if repr(a) == repr(b) else math.inf
    return abs(a - b) / (tolerance[1] + tolerance[0] * abs(b))


def _differing(recipe: Recipe, got: Dict[str, List[float]], want: Dict[str, List[float]],
               nudged: Dict[str, List[float]]) -> Optional[str]:
    relative, absolute = _COMPRESSED.get(recipe.compression, _TOLERANCES[recipe.dtype])
    if sorted(got) != sorted(want):
        return f"has {sorted(got)}, one process has {sorted(want)}"
    if recipe.compression == "powersgd":
        return None  # an approximation, by design
    for name, values in want.items():
        of_rounding = max((abs(a - b) for a, b in zip(values, nudged.get(name, values))), default=0.0)
        tolerance = (relative, absolute + _NUDGES * of_rounding)
        for i, (a, b) in enumerate(zip(got[name], values)):
            if _distance(a, b, tolerance) > 1:
                return f"{name}[{i}] is {a!r}, in one process {b!r}"
    return None


def _errors(recipe: Recipe, ends: Dict[int, Any]) -> Optional[str]:
    """What is wrong with the errors of the ranks; None if they are allowed."""
    errors = {rank: end["error"] for rank, end in ends.items()}
    texts = "; ".join(f"rank {rank}: {error['kind']}: {error['text'][:160]}" if error else f"rank {rank}: no error"
                      for rank, error in errors.items())
    for rank, error in errors.items():
        if error is not None and not error["ours"]:
            return f"an error that is no refusal: {texts}; at {' < '.join(reversed(error['trace']))}"
    if None in errors.values():
        return f"an error on some ranks only: {texts}"
    if not recipe.refusable():
        first = next(iter(errors.values()))
        return f"an error of a program that is right: {texts}; at {' < '.join(reversed(first['trace']))}"
    if not any(_NAMED.search(error["text"]) for error in errors.values()):
        return f"errors that name no parameter: {texts}"
    if recipe.by_hand == "kept" and not all("was changed while it was reduced" in error["text"] for error in errors.values()):
        return f"an error whose cause only some ranks know: {texts}"
    return None


def _values_by_label(ends: Dict[int, Any]) -> Dict[int, Dict[str, Dict[str, List[float]]]]:
    return {rank: {label: values for label, values, _ in end["moments"]} for rank, end in ends.items()}


def judge(recipe: Recipe, ends: Dict[int, Any], references: Dict[int, Any],
          nudged: Optional[Dict[int, Any]] = None) -> Optional[str]:
    """None, or what is wrong.

    ends, references: by rank; the reference is of the rank's group. nudged: references that began with other last bits.
    How far these are from the others says what rounding does in this program: LBFGS makes 1e-10 of the last bit in a
    step, and an Adasum of steps that cancel is nothing but rounding.
    """
    missing = sorted(rank for rank, end in ends.items() if end is None)
    if missing:
        return f"ranks {missing} hang or have died"
    # In the order of the steps, so that the first difference is reported, whatever came of it.
    labels: List[str] = []
    for end in list(references.values()) + list(ends.values()):
        labels += [label for label, *_ in end["moments"] if label not in labels]
    table = {rank: {label: (values, digest) for label, values, digest in end["moments"]}
             for rank, end in ends.items()}
    wants = _values_by_label(references)
    others = _values_by_label(nudged or {})
    equal_at_start = recipe.start not in UNEQUAL
    for label in labels:
        if label == "start" and not equal_at_start:
            continue
        digests: Dict[Any, int] = {}
        for rank in sorted(ends):
            if label not in table[rank]:
                continue
            values, digest = table[rank][label]
            if label in wants[rank]:
                what = _differing(recipe, values, wants[rank][label], others.get(rank, {}).get(label, {}))
                if what is not None:
                    return f"at {label}: rank {rank}: {what}"
            key = id(references[rank])
            other = digests.setdefault(key, rank)
            if table[other][label][1] != digest:
                return f"at {label}: ranks {other} and {rank} have different bits"
    if any(end["error"] is not None for end in ends.values()):
        return _errors(recipe, ends)
    for rank, end in ends.items():
        lacking = [label for label in wants[rank] if label not in table[rank]]
        if lacking and recipe.uneven == "no":
            return f"rank {rank} has not done {lacking}"
    return None
