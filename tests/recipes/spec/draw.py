"""draw(): a recipe from a seed.

Half of the dimensions have their simplest value, so that the others can be combined with each other; at most one value
is one that Maypole may refuse, because such a program can end before anything else happens.

Thread contract: pure.
"""

import random

from recipe import DIMENSIONS, REFUSABLE, Recipe

# How often a dimension has another value than the simplest; the default is half.
_SHARES = {"model": 0.8, "dtype": 0.2, "optimizer": 0.8, "scheduler": 0.6, "start": 0.7, "op": 0.25, "second": 0.25,
           "declared": 0.3, "same_names": 0.3, "uneven": 0.25, "joined": 0.4, "skipped": 0.15, "compression": 0.2, "outer": 0.15,
           "closure": 0.2, "by_hand": 0.2, "scaler": 0.25, "subset": 0.15, "passes": 0.3, "memory": 0.4,
           "checkpoint": 0.25, "copied": 0.4, "usage": 0.6, "named": 0.2, "shuffled": 0.1, "frozen": 0.4, "predivide": 0.2,
           "groups": 0.35, "compiled": 0.1, "grad_dtype": 0.6, "kernel": 0.4}
# Dimensions whose other values torch 1.13 does not have; besides them kernel=fused.
NEEDS_NEW_TORCH = ("compiled", "grad_dtype")
_REFUSED = 0.2  # of the programs
# What a program with a refusable value must have for it to matter; normal() would take the value out.
_WITH = {("joined", "bare"): {"uneven": "join"}, ("declared", False): {"passes": "two"}}


def draw(seed: int, modern: bool = False, elastic: bool = False) -> Recipe:
    """modern: torch is new. elastic: all recipes are elastic, else none."""
    source = random.Random(seed)
    refusable = [choice for choice in sorted(REFUSABLE, key=str) if modern or choice[0] not in NEEDS_NEW_TORCH]
    refused = source.choice(refusable) if source.random() < _REFUSED else None
    values = {"data": seed % 1000}
    for name, choices in DIMENSIONS.items():
        if name == "elastic":
            continue
        others = [value for value in choices[1:] if (name, value) not in REFUSABLE]
        if not modern:
            others = [value for value in others if value != "fused" and name not in NEEDS_NEW_TORCH]
        if others and source.random() < _SHARES.get(name, 0.5):
            values[name] = source.choice(others)
    if refused:
        values.update([refused], **_WITH.get(refused, {}))
    if elastic:
        values["elastic"] = source.choice(DIMENSIONS["elastic"][1:])
    return Recipe.of(values).normal()
