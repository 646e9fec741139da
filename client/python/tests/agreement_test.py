"""Whose state counts when an epoch begins."""

import unittest

from maypole.common.agreement import Offer, Plan, decide
from maypole.common.commit_memory import Commit


def plan(*offers):
    return decide([Offer(synced, commit and Commit(*commit))
                   for synced, commit in offers])


class AgreementTest(unittest.TestCase):

    def test_when_all_are_new_rank_0_counts(self):
        self.assertEqual(plan((False, None), (False, None)),
                         Plan(0, None, 1, False))
        self.assertEqual(plan((False, None)), Plan(0, None, 1, False))

    def test_who_has_trained_counts_before_what_a_dead_one_has_left(self):
        # Its executor has a commit that the survivors do not know.
        self.assertEqual(plan((True, (3, 7)), (False, (3, 8))),
                         Plan(0, (3, 7), 4, True))
        self.assertEqual(plan((False, (3, 8)), (True, (3, 7))),
                         Plan(1, (3, 7), 4, True))
        self.assertEqual(plan((True, (3, 7)), (True, (3, 6)), (False, None)),
                         Plan(0, (3, 7), 4, True))

    def test_when_all_have_died_the_newest_commit_counts(self):
        self.assertEqual(plan((False, (3, 7)), (False, (3, 8)), (False, (3, 8))),
                         Plan(1, (3, 8), 4, True))
        # The chain of commits that was continued, not the longer one.
        self.assertEqual(plan((False, (3, 9)), (False, (4, 1))),
                         Plan(1, (4, 1), 5, True))

    def test_a_node_whose_executor_has_died_gets_it_from_its_neighbour(self):
        self.assertEqual(plan((False, None), (False, None), (False, (2, 5))),
                         Plan(2, (2, 5), 3, False))

    def test_new_commits_are_greater_than_all_that_anybody_has(self):
        generation = plan((True, (3, 7)), (False, (9, 1))).generation
        self.assertGreater(Commit(generation, 0), Commit(9, 1))

    def test_nothing_is_compared_where_only_the_root_has_values(self):
        self.assertFalse(plan((True, (3, 7)), (False, None)).compare)
        self.assertFalse(plan((True, (3, 7))).compare)


if __name__ == "__main__":
    unittest.main()
