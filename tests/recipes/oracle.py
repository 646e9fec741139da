"""Oracle: plays recipes on layouts of ranks, and reports what is wrong.

    with oracle.Oracle() as o:
        failure = o.failure(draw(17), "2x2")       # None, or a Failure
        print(o.shrunk(failure))

As a program:

    oracle.py --seeds 0:200 [--layout 2x2] [--mutant NAME] [--modern] [--elastic]     plays these; shrinks and prints each failure
    oracle.py --recipe '{"optimizer": "Adam", "made": "before"}'          plays this one

after `. deploy/env.sh`, with a Python that has torch. The status is 1 if there was a failure.

Thread contract: one thread.
"""

import argparse
import collections
import json
import os
import sys

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), *part) for part in (["spec"], ["..", "testing"], ["..", "properties"])]

# pylint: disable=wrong-import-position
import elastic_crew
import harness
from check import groups_of, judge
from crew import Crew, Lone
from draw import draw
from open_faults import reason_of
from recipe import Recipe
from shrink import shrink

LAYOUTS = {"1x2": (1, 2), "2x2": (2, 2), "1x3": (1, 3)}  # nodes x ranks of each

Failure = collections.namedtuple("Failure", "recipe layout mutant what")


class Oracle:
    """See the head of this file. counts: programs by how they ended."""

    def __init__(self):
        self.crews = {}
        self.counts = collections.Counter()
        self._lone = None

    def __enter__(self):
        self._lone = Lone()
        return self

    def __exit__(self, *_):
        for crew in self.crews.values():
            crew.stop()
        self._lone.__exit__()

    def failure(self, recipe, layout, mutant=None):
        """None, or the Failure of the recipe on this layout."""
        if recipe.elastic != "no":
            return self._verdict(recipe, layout, mutant, *self._play_elastic(recipe, layout, mutant))
        crew = self.crews.setdefault(layout, Crew(*LAYOUTS[layout]))
        references = {}
        for members in groups_of(recipe, crew.size):
            end = self._lone.play(recipe, members)
            if end["error"] is not None:
                # Not a program of torch; normal() should know.
                self.counts["failed"] += 1
                return Failure(recipe, layout, mutant, f"one process cannot play this: {end['error']}")
            references.update(dict.fromkeys(members, end))

        def nudged():
            return {rank: self._lone.play(recipe, members, nudged=True)
                    for members in groups_of(recipe, crew.size) for rank in members}

        return self._verdict(recipe, layout, mutant, crew.play(recipe, mutant), references, nudged)

    def _play_elastic(self, recipe, layout, mutant):
        ends, sizes = elastic_crew.play(recipe, *LAYOUTS[layout], mutant)

        def references(**how):
            reference = self._lone.play(recipe, [0], sizes, **how) if sizes else {"moments": [], "error": None}
            return dict.fromkeys(ends, reference)

        return ends, references(), lambda: references(nudged=True)

    def _verdict(self, recipe, layout, mutant, ends, references, nudged):
        what = judge(recipe, ends, references)
        if what is not None and "in one process" in what:
            what = judge(recipe, ends, references, nudged())
        if what is not None:
            self.counts["failed"] += 1
            return Failure(recipe, layout, mutant, what)
        self.counts["refused" if ends[0]["error"] else "equal"] += 1
        return None

    def shrunk(self, failure):
        """The simplest recipe that fails on this layout."""
        last = failure

        def fails(recipe):
            nonlocal last
            found = self.failure(recipe, failure.layout, failure.mutant)
            last = found or last
            return found is not None

        shrink(failure.recipe, fails)
        return last


def text(failure):
    """What happened, and the command that plays it again."""
    mutant = f" --mutant {failure.mutant}" if failure.mutant else ""
    return (f"{failure.layout}: {failure.what}\n  again: python3 tests/recipes/oracle.py --layout {failure.layout}{mutant} "
            f"--recipe '{json.dumps(failure.recipe.differences())}'")


def main():
    parser = argparse.ArgumentParser(description="Plays training programs on ranks and in one process.")
    parser.add_argument("--seeds", default="0:100", help="first:end")
    parser.add_argument("--recipe", help="a recipe in JSON, in place of seeds")
    parser.add_argument("--layout", choices=LAYOUTS, action="append")
    parser.add_argument("--mutant")
    parser.add_argument("--modern", action="store_true", help="torch is new: torch.compile, fused optimizers")
    parser.add_argument("--elastic", action="store_true", help="elastic jobs, of which a rank dies")
    parser.add_argument("--known", action="store_true", help="play programs with known faults, too")
    parser.add_argument("--python", default=harness.PYTHON, help="the players' interpreter")
    parser.add_argument("--keep", action="store_true", help="do not shrink")
    options = parser.parse_args()
    harness.PYTHON = options.python
    seeds = range(*map(int, options.seeds.split(":")))
    recipes = {"recipe": Recipe.of(json.loads(options.recipe))} if options.recipe else {
        f"seed {seed}": draw(seed, options.modern, options.elastic) for seed in seeds}
    failures = 0
    with Oracle() as oracle:
        for name, recipe in recipes.items():
            if not (options.recipe or options.known) and reason_of(recipe):
                oracle.counts["left out"] += 1
                continue
            for layout in options.layout or LAYOUTS:
                found = oracle.failure(recipe, layout, options.mutant)
                if found is not None:
                    failures += 1
                    print(name, text(found if options.keep else oracle.shrunk(found)), flush=True)
        print(dict(oracle.counts), {layout: crew.starts for layout, crew in oracle.crews.items()})
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
