"""shrink(): the simplest recipe that still fails.

Thread contract: that of fails().
"""

from typing import Callable

from recipe import DIMENSIONS, Recipe


def shrink(recipe: Recipe, fails: Callable[[Recipe], bool]) -> Recipe:
    """Sets one dimension after the other to its simplest value while fails() is true, until nothing more can be set."""
    while True:
        simpler = _simpler(recipe, fails)
        if simpler is None:
            return recipe
        recipe = simpler


def _simpler(recipe: Recipe, fails: Callable[[Recipe], bool]):
    tried = {recipe}
    for name in [name for name in recipe.differences() if name != "data"]:
        candidate = recipe.replace(**{name: DIMENSIONS[name][0]}).normal()
        # Normal, it may have become something else in place of what was taken out.
        if candidate in tried or len(candidate.differences()) >= len(recipe.differences()):
            continue
        tried.add(candidate)
        if fails(candidate):
            return candidate
    return None
