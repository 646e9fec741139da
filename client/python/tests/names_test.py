"""The names of torch.distributed's operations: known ones for what repeats, far enough apart, and equal on all ranks."""

import importlib
import os
import random
import sys
import types
import unittest
from unittest import mock

import maypole

# Not its package's own module, which needs a newer torch than a distribution may have.
_package = types.ModuleType("maypole.torch.distributed")
_package.__path__ = [os.path.join(os.path.dirname(maypole.__file__), "torch", "distributed")]
with mock.patch.dict(sys.modules, {"maypole.torch": types.ModuleType("maypole.torch"), _package.__name__: _package}):
    names = importlib.import_module("maypole.torch.distributed._names")


def numbers(signatures, state=None):
    state = names.Names() if state is None else state
    return [state.next(signature) for signature in signatures]


class NamesTest(unittest.TestCase):

    def steps(self, step, count):
        """The numbers of each step of a program that repeats `step`."""
        found = numbers(step * count)
        return [tuple(found[i:i + len(step)]) for i in range(0, len(found), len(step))]

    def test_a_program_that_repeats_its_calls_gets_the_same_names_again(self):
        for step in ("a", "ab", "aab", "aababb", "a" * 161 + "b", "abcde" * 20 + "f", [("sum", n) for n in range(400)]):
            with self.subTest(step=step[:8], length=len(step)):
                step = list(step)
                count = 8 + 256 // len(step)
                found = self.steps(step, count)
                apart = -(-names.LEAST_DISTANCE // len(step))
                # Two rounds of new names at most, and one more for what was found late.
                after = 3 * max(apart, 1)
                self.assertEqual(found[after:count - apart], found[after + apart:])

    def test_what_repeats_after_something_else_repeats_again(self):
        """Most names are those of an earlier call with the same signature, however long another part is."""
        for length in (1, 4, 70):
            state, last, known = names.Names(), {}, 0
            program = (list("abc") * 200 + [f"other {n}" for n in range(length)]) * 10
            for signature in program:
                number = state.next(signature)
                known += last.get(number) == signature
                last[number] = signature
            self.assertGreater(known, 0.75 * len(program))

    def test_names_are_far_apart_in_any_program(self):
        for seed in range(60):
            source = random.Random(seed)
            state, last, call = names.Names(), {}, 0
            for _ in range(60):
                step = [source.choice("abcdefgh"[:source.randint(1, 8)]) for _ in range(source.randint(1, 200))]
                for signature in step * source.choice((1, 1, 2, 5, 40 if len(step) < 40 else 3)):
                    number = state.next(signature)
                    self.assertGreaterEqual(call - last.get(number, -names.NAMES), names.LEAST_DISTANCE, seed)
                    last[number] = call
                    call += 1

    def test_a_call_that_differs_between_ranks_has_one_name(self):
        """The first one: of all calls before it, and their names, the ranks think the same."""
        for seed in range(200):
            source = random.Random(seed)
            program = [source.choice("abc") for _ in range(source.randint(1, 6))] * source.randint(1, 200)
            program += [source.choice("abcd") for _ in range(20)]
            at = source.randrange(len(program))
            other = program[:at] + ["other"]
            self.assertEqual(numbers(program[:at + 1]), numbers(other))

    def test_programs_with_ever_new_tensors_keep_little(self):
        state = names.Names()
        found = numbers(range(20000), state)
        self.assertEqual(found[:3000], [n % names.NAMES for n in range(3000)])
        self.assertLessEqual(max(found), names.NAMES - 1)
        self.assertLessEqual(len(state._known) + len(state._seen), 2 * names._MOST_SIGNATURES)


if __name__ == "__main__":
    unittest.main()
