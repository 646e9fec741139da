"""maypole.arrays.same_on_all: numbers of two ranks, with the same labels and with others."""

import unittest

import fake_library
import numpy as np
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
from maypole.arrays import same_on_all  # pylint: disable=wrong-import-position
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


if __name__ == "__main__":
    unittest.main()
