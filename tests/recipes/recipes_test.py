"""Random training programs on ranks, against one process on the whole batch.

Each test is a layout of ranks that plays the same seeds: those whose recipe has a value that no earlier one has, or, in
the long run, all. Two ranks on a node play enough seeds for every value to occur; in the plain run, the other layouts
play a quarter of these. A failure prints the simplest program that still fails, and the command that plays it.
MAYPOLE_TEST_RECIPES: the number of seeds, MAYPOLE_TEST_ELASTIC_RECIPES: seeds of elastic jobs; MAYPOLE_TEST_SEED: the
first one; MAYPOLE_TEST_LONG: play all seeds, and every value of every dimension must be in them.
"""

import collections
import os
import unittest

import oracle
from draw import NEEDS_NEW_TORCH, draw
from open_faults import FAULTS, reason_of
from recipe import DIMENSIONS, Recipe

RECIPES = int(os.environ.get("MAYPOLE_TEST_RECIPES", "200"))
SEED = int(os.environ.get("MAYPOLE_TEST_SEED", "0"))
LONG = os.environ.get("MAYPOLE_TEST_LONG") == "1"
# Each is a job of its own, of some seconds.
ELASTIC = int(os.environ.get("MAYPOLE_TEST_ELASTIC_RECIPES", "2"))
MODERN = False  # new_torch_recipes_test.py sets it


# Recipes that have failed once, by layout.
FAILED_ONCE = [
    ("1x3", {"data": 138, "usage": "nobody", "shuffled": True, "buckets": "small"}),
    ("1x2", {"usage": "idle", "skipped": "after", "zero_grad": "model"}),
    ("1x2", {"start": "resume_some", "optimizer": "Adam"}),
    ("1x2", {"model": "batch_norm", "second": "crossed_forward"}),
    ("1x2", {"frozen": "since", "optimizer": "momentum", "zero_grad": "zeros", "uneven": "first"}),
    ("1x2", {"model": "words", "usage": "idle", "optimizer": "SparseAdam", "uneven": "first"}),
]


class RecipesTest(unittest.TestCase):
    covered = collections.Counter()

    @classmethod
    def setUpClass(cls):
        cls.oracle = oracle.Oracle()
        cls.oracle.__enter__()
        cls.addClassCleanup(cls.oracle.__exit__)

    @classmethod
    def tearDownClass(cls):
        print(f"programs: {dict(cls.oracle.counts)}", flush=True)
        print("not covered: %s" % (", ".join(cls.gaps()) or "nothing"), flush=True)

    @classmethod
    def gaps(cls):
        """Values of dimensions that no program had."""
        return [f"{name}={value}" for name, values in DIMENSIONS.items() for value in values[1:]
                if not cls.covered[name, value] and (MODERN or value != "fused" and name not in NEEDS_NEW_TORCH)]

    def recipes(self, count, elastic):
        """(seed, recipe) of those to play."""
        seen = set()
        for seed in range(SEED, SEED + count):
            recipe = draw(seed, MODERN, elastic)
            if reason_of(recipe):
                self.oracle.counts["left out"] += 1
                continue
            values = {f"{name}={value}" for name, value in recipe.differences().items() if name != "data"}
            if LONG or elastic or not values <= seen:
                yield seed, recipe
            seen |= values

    def play(self, layout, count=RECIPES, elastic=False):
        failures = []
        for seed, recipe in self.recipes(count, elastic):
            self.covered.update(recipe.differences().items())
            failure = self.oracle.failure(recipe, layout)
            if failure is not None:
                failures.append(f"seed {seed}: " + oracle.text(self.oracle.shrunk(failure)))
            if len(failures) == 5:
                break
        self.assertEqual(failures, [], "\n" + "\n".join(failures))

    def test_two_ranks(self):
        self.play("1x2")

    def test_two_nodes_of_two_ranks(self):
        self.play("2x2", RECIPES if LONG else RECIPES // 4)

    def test_three_ranks(self):
        self.play("1x3", RECIPES if LONG else RECIPES // 4)

    def test_elastic_jobs(self):
        self.play("1x3", ELASTIC, elastic=True)

    def test_elastic_jobs_on_two_nodes(self):
        self.play("2x2", (ELASTIC + 1) // 2, elastic=True)

    def test_what_has_failed_once(self):
        for layout, recipe in FAILED_ONCE:
            failure = self.oracle.failure(Recipe.of(recipe), layout)
            self.assertIsNone(failure, failure and oracle.text(failure))

    def test_known_faults_are_still_there(self):
        for fault in FAULTS:
            with self.subTest(fault.reason):
                recipe = Recipe.of(fault.example)
                self.assertEqual(reason_of(recipe), fault.reason)
                self.assertIsNotNone(self.oracle.failure(recipe, "1x2"), "it is mended: take it out of open_faults.py")

    @unittest.skipUnless(LONG, "needs a long run")
    def test_zz_everything_was_covered(self):
        # All values of a dimension that an open fault is about may be left out.
        known = {name for fault in FAULTS for name in fault.example}
        self.assertEqual([gap for gap in self.gaps() if gap.partition("=")[0] not in known], [])


if __name__ == "__main__":
    unittest.main()
