"""maypole.arrays.same_on_all and same_values: numbers of two ranks, with the same labels and with others."""

import unittest

import fake_library
import numpy as np
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
from maypole.arrays import same_on_all, same_values  # pylint: disable=wrong-import-position
from maypole.common.process_sets import global_process_set  # pylint: disable=wrong-import-position


class SameOnAllTest(unittest.TestCase):

    def setUp(self):
        self.fake = fake_library.FakeLibrary(2)
        _native.use(self.fake)

    def gather(self, labels, dtype=np.float64):
        """labels: of each rank. What the ranks got: rows, or an error's text."""
        got = [None, None]

        def rank(r):
            try:
                got[r] = same_on_all.gather(np.arange(len(labels[r])).astype(dtype) + 10 * r, labels[r], "x",
                                            global_process_set, ValueError).tolist()
            except ValueError as error:
                got[r] = str(error)

        fake_library.run_ranks(self.fake, rank)
        self.assertEqual(self.fake.pending(), 0)
        self.assertEqual(got[0], got[1])
        return got[0]

    def test_rows_of_all_ranks(self):
        self.assertEqual(self.gather([["a", "b"]] * 2), [[0, 1], [10, 11]])
        self.assertEqual(self.gather([["a"]] * 2, np.uint8), [[0], [10]])
        self.assertEqual(self.gather([[], []]), [[], []])

    def test_other_labels_are_an_error_that_names_them(self):
        self.assertEqual(self.gather([["a", "b"], ["a", "c"]]),
                         "'b' on rank 0 but not on rank 1, 'c' on rank 1 but not on rank 0")
        self.assertEqual(self.gather([["a", "b"], ["b"]]), "'a' on rank 0 but not on rank 1")
        self.assertEqual(self.gather([[], list("abcde")]), "'a', 'b', 'c' and 2 more on rank 1 but not on rank 0")
        self.assertEqual(self.gather([["a", "b"], ["b", "a"]]),
                         "rank 1 has 2, rank 0 has 2, in another order from number 0 on: ['b'] and ['a']")
        self.assertEqual(self.gather([["a", "a"], ["a"]]),
                         "rank 1 has 1, rank 0 has 2, in another order from number 1 on: [] and ['a']")


class RecurringTest(unittest.TestCase):
    """A loop of two ranks. weights: what each has in each step, of two ranks; also numbers that are not weights."""

    def run_steps(self, *steps, may_round=False):
        """Returns how many steps until the next comparison each has said, and at last an error's text, if any."""
        fake = fake_library.FakeLibrary(2)
        _native.use(fake)
        said = [[], []]

        def rank(r):
            recurring = same_values.Recurring("Loop")
            for step in steps:
                recurring.until_next -= 1
                if recurring.until_next > 0:
                    continue
                facts = [same_values.fact_of_array("weights of 'w'", "w", np.array([step[r][0]]), True, may_round)]
                facts += [same_values.fact_of_array("rate", "rate", np.array(value)) for value in step[r][1:]]
                try:
                    said[r].append(recurring.run(facts, "x", global_process_set))
                except ValueError as error:
                    said[r].append(str(error))
                    return

        fake_library.run_ranks(fake, rank)
        self.assertEqual(fake.pending(), 0)
        self.assertEqual(said[0], said[1])
        return said[0]

    def test_equal_ranks_are_compared_less_and_less_often(self):
        self.assertEqual(self.run_steps(*[[[i], [i]] for i in range(4000)]),
                         [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000, 1000])

    def test_ranks_that_have_stepped_and_not_broadcast(self):
        self.assertIn("Loop: the ranks begin with different weights of 'w': checksum ",
                      self.run_steps([[1], [2]], [[3], [4]])[-1])
        self.assertEqual(self.run_steps([[1], [2]], [[3], [3]]), [1, 2])

    def test_before_the_first_step_nothing_is_an_error(self):
        self.assertEqual(self.run_steps([[1], [2]], [[1], [2]], [[1], [2]], [[3], [3]]), [1, 1, 1, 2])
        self.assertIn("begin with", self.run_steps([[1], [2]], [[1], [2]], [[1], [3]])[-1])

    def test_the_cause_is_named(self):
        self.assertIn("different rate: 0.1 on rank 0 and 0.2 on rank 1",
                      self.run_steps([[1, 0.1], [1, 0.2]], [[2, 0.1], [3, 0.2]])[-1])

    def test_a_step_that_was_skipped(self):
        said = self.run_steps([[1], [1]], [[2], [2]], [[3], [2]], [[4], [3]])
        self.assertEqual(said[:2], [1, 2])
        self.assertIn("and were equal before. Since then a rank has skipped a step", said[2])

    def test_rounding_of_sparse_gradients_is_no_difference(self):
        self.assertEqual(self.run_steps([[1], [1]], [[2], [3]], [[4], [4]], [[5], [6]], may_round=True), [1, 2, 4])
        self.assertIn("begin with", self.run_steps([[1], [2]], [[2], [3]], may_round=True)[-1])


if __name__ == "__main__":
    unittest.main()
