"""Recipes: drawing, JSON, rules, judging and shrinking, without ranks."""

import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "spec"))

# pylint: disable=wrong-import-position
from check import groups_of, judge
from draw import draw
from recipe import DIMENSIONS, REFUSABLE, Recipe
from shrink import shrink

SEEDS = range(2000)


def end(*moments, error=None):
    return {"moments": [[label, {"w": [value]}, digest] for label, value, digest in moments], "error": error}


def refusal(text="gradient of 'head.bias'", ours=True):
    return {"kind": "ValueError", "text": text, "ours": ours, "trace": ["a:1 f"]}


class SpecTest(unittest.TestCase):
    def test_a_seed_gives_the_same_recipe(self):
        self.assertEqual(draw(7), draw(7))
        self.assertNotEqual(draw(7), draw(8))

    def test_recipes_are_normal_and_go_through_json(self):
        for seed in SEEDS:
            recipe = draw(seed, seed % 2 == 1)
            self.assertEqual(recipe.normal(), recipe)
            self.assertEqual(Recipe.of(json.loads(json.dumps(recipe.differences()))), recipe)

    def test_every_value_is_drawn(self):
        drawn = {(name, value) for seed in SEEDS
                 for name, value in draw(seed, True, seed % 3 == 0).differences().items()}
        lacking = [(name, value) for name, values in DIMENSIONS.items() for value in values[1:]
                   if (name, value) not in drawn]
        self.assertEqual(lacking, [])

    def test_the_refusable_are_values(self):
        for name, value in REFUSABLE:
            self.assertIn(value, DIMENSIONS[name])

    def test_an_unknown_value_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "optimizer='Adamant', expected one of"):
            Recipe.of({"optimizer": "Adamant"})

    def test_shrinking_leaves_what_is_needed(self):
        def fails(recipe):
            return recipe.scheduler != "none" and recipe.made == "before" and recipe.start == "resume"

        recipe = next(r for r in map(draw, range(100000)) if fails(r) and len(r.differences()) > 8)
        self.assertEqual(set(shrink(recipe, fails).differences()), {"data", "scheduler", "made", "start"})


class JudgeTest(unittest.TestCase):
    RIGHT, MAY_REFUSE = Recipe(), Recipe(start="unequal")

    def judge(self, recipe, *ends, reference=end(("start", 1.0, ""), ("0.0", 2.0, ""))):
        return judge(recipe, dict(enumerate(ends)), dict.fromkeys(range(len(ends)), reference))

    def test_equal(self):
        good = end(("start", 1.0, "a"), ("0.0", 2.0 + 1e-9, "b"))
        self.assertIsNone(self.judge(self.RIGHT, good, good))

    def test_other_bits(self):
        ends = [end(("start", 1.0, "a"), ("0.0", 2.0, digest)) for digest in "bc"]
        self.assertIn("different bits", self.judge(self.RIGHT, *ends))

    def test_another_value_than_one_process(self):
        bad = end(("start", 1.0, "a"), ("0.0", 2.1, "b"))
        self.assertIn("w[0] is 2.1, in one process 2.0", self.judge(self.RIGHT, bad, bad))
        self.assertIn("nan", self.judge(self.RIGHT, *[end(("start", float("nan"), "a"))] * 2))

    def test_as_far_from_one_process_as_rounding_goes(self):
        ends = [end(("start", 1.0, "a"), ("0.0", 2.00001, "b"))] * 2
        reference = end(("start", 1.0, ""), ("0.0", 2.0, ""))

        def verdict(nudged):
            return judge(self.RIGHT, dict(enumerate(ends)), dict.fromkeys(range(2), reference),
                         dict.fromkeys(range(2), end(("start", 1.0, ""), ("0.0", nudged, ""))))

        self.assertIsNone(verdict(2.0000002))
        self.assertIn("w[0] is 2.00001, in one process 2.0", verdict(2.00000001))

    def test_a_rank_that_does_not_answer(self):
        self.assertIn("ranks [1] hang or have died", self.judge(self.RIGHT, end(("start", 1.0, "a")), None))

    def test_steps_that_were_not_done(self):
        self.assertIn("has not done ['0.0']", self.judge(self.RIGHT, *[end(("start", 1.0, "a"))] * 2))

    def test_errors(self):
        at_start = ("start", 1.0, "a")
        refused = end(at_start, error=refusal())
        self.assertIsNone(self.judge(self.MAY_REFUSE, refused, refused))
        self.assertIn("a program that is right", self.judge(self.RIGHT, refused, refused))
        self.assertIn("on some ranks only", self.judge(self.MAY_REFUSE, refused, end(at_start, ("0.0", 2.0, "b"))))
        self.assertIn("no refusal", self.judge(self.MAY_REFUSE, *[end(at_start, error=refusal(ours=False))] * 2))
        self.assertIn("name no parameter", self.judge(self.MAY_REFUSE, *[end(at_start, error=refusal("no"))] * 2))

    def test_a_cause_that_each_rank_must_tell(self):
        first = end(error=refusal("the gradient of 'head.bias' was changed while it was reduced"))
        self.assertIsNone(self.judge(Recipe(by_hand="kept"), first, first))
        self.assertIn("cause only some ranks know", self.judge(Recipe(by_hand="kept"), first, end(error=refusal("rank 0 has left"))))

    def test_an_error_after_a_wrong_step(self):
        late = end(("start", 1.0, "a"), ("0.0", 3.0, "b"), error=refusal())
        self.assertIn("at 0.0", self.judge(self.MAY_REFUSE, late, late))

    def test_groups(self):
        self.assertEqual(groups_of(Recipe(subset=True), 3), [[0, 1], [2]])
        self.assertEqual(groups_of(Recipe(), 3), [[0, 1, 2]])


if __name__ == "__main__":
    unittest.main()
