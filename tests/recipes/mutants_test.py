"""The oracle finds every fault of play/mutants.py within a number of programs.

A fault counts as found in a program that fails with it and does not fail without it. The table at the end says in which
program it was found, counted among those in which the fault can have an effect.
"""

import ast
import os
import unittest
import unittest.mock

import crew
import oracle
from draw import draw

LAYOUT = "1x2"
MOST = 40  # programs in which a fault must be found
SEEDS = 20000  # among which these are looked for

# The programs in which a fault can show itself; all others need not be played.
SHOWS = {
    "a_gradient_is_left_out": lambda r: r.op != "Adasum",
    "a_bucket_is_left_out": lambda r: r.buckets != "no" and r.op != "Adasum",
    "a_gradient_is_reduced_twice": lambda r: r.op == "Sum",
    "a_rank_keeps_its_own_gradient": lambda r: r.op != "Adasum",
    "a_bit_differs": lambda r: r.op != "Adasum",
    "an_overflow_stays_on_its_rank": lambda r: r.scaler == "yes",
    "an_unused_gradient_stays_away": lambda r: r.usage in ("some", "seldom", "late", "idle"),
    "the_predivision_stays": lambda r: r.predivide != 1,
    "a_sum_is_averaged": lambda r: r.op == "Sum",
    "sparse_values_are_not_averaged": lambda r: r.model == "words" and r.op == "Average" and not r.as_dense,
    "adasum_is_an_average": lambda r: r.op == "Adasum",
    "the_process_set_is_ignored": lambda r: r.subset,
    "the_scheduler_is_detached": lambda r: r.made == "before",
    "the_parameters_are_not_broadcast": lambda r: r.start.startswith("broadcast"),
    "the_state_is_not_broadcast": lambda r: r.start.startswith("resume_root"),
    "the_learning_rate_is_not_broadcast": lambda r: r.start.startswith("resume_root"),
    "a_broadcast_is_from_another_root": lambda r: r.start.startswith("broadcast"),
    "an_unfrozen_parameter_is_forgotten": lambda r: r.frozen == "until" and r.op != "Adasum",
    "a_closure_is_not_synchronized": lambda r: r.closure,
    "the_loss_of_a_line_search_is_the_ranks_own": lambda r: r.optimizer == "LBFGS",
    "passes_are_averaged": lambda r: r.passes != "one" and r.op != "Adasum",
    "names_are_exchanged": lambda r: r.usage == "all" and r.named,
    "batch_norm_is_of_one_rank": lambda r: r.model == "batch_norm",
    "a_loaded_state_is_lost": lambda r: r.start in ("resume", "resume_root"),
    "a_step_reduces_again": lambda r: r.synchronize and r.op == "Sum",
    "gradients_are_not_cleared": lambda r: r.zero_grad in ("default", "none", "zeros"),
    "an_added_group_is_not_reduced": lambda r: r.groups == "added",
    "a_loss_of_two_models_is_for_the_first": lambda r: r.second in ("shared", "adversarial"),
    "a_join_is_not_compared": lambda r: r.joined == "bare" and r.uneven != "ever",
    "an_error_stays_on_its_rank": lambda r: r.by_hand == "kept" and r.usage == "all",
    "a_rank_raises": lambda r: True,
    "a_rank_dies": lambda r: True,
    "a_rank_hangs": lambda r: True,
}

# Those that show themselves where an error is right.
OF_ERRORS = ("a_join_is_not_compared", "an_error_stays_on_its_rank")

# In elastic jobs, each on a layout.
ELASTIC = {
    "the_scaler_is_not_restored": ("1x3", lambda r: r.scaler != "no"),
    "adasum_is_an_average": ("2x2", lambda r: r.op == "Adasum"),
    "a_rank_keeps_its_own_gradient": ("1x2", lambda r: r.compression in ("fp16", "bf16")),
}


class MutantsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.oracle = oracle.Oracle()
        cls.oracle.__enter__()
        cls.addClassCleanup(cls.oracle.__exit__)

    def find(self, mutant, shows, layout=LAYOUT, elastic=False):
        """(how many programs were played, the failure)."""
        played = 0
        for seed in range(SEEDS):
            recipe = draw(seed, elastic=elastic)
            if recipe.refusable() and mutant not in OF_ERRORS or not shows(recipe):
                continue
            played += 1
            failure = self.oracle.failure(recipe, layout, mutant)
            if failure is not None and self.oracle.failure(recipe, layout) is None:
                return played, failure
            if played == MOST:
                break
        raise AssertionError(f"{mutant} was not found in {played} programs")

    def test_each_is_found(self):
        with unittest.mock.patch.object(crew, "HANG_SECONDS", 8):
            for mutant, shows in SHOWS.items():
                with self.subTest(mutant):
                    played, failure = self.find(mutant, shows)
                    print(f"{mutant}: program {played}, {failure.what[:150]}", flush=True)

    @unittest.skipUnless(os.environ.get("MAYPOLE_TEST_LONG"), "MAYPOLE_TEST_LONG is not set: elastic jobs take minutes")
    def test_each_is_found_in_elastic_jobs(self):
        for mutant, (layout, shows) in ELASTIC.items():
            with self.subTest(mutant):
                played, failure = self.find(mutant, shows, layout, elastic=True)
                print(f"{mutant}: elastic program {played}, {failure.what[:150]}", flush=True)

    def test_all_are_in_the_table(self):
        with open(os.path.join(os.path.dirname(crew.PLAYER), "mutants.py"), encoding="utf-8") as f:
            functions = [node.name for node in ast.parse(f.read()).body if isinstance(node, ast.FunctionDef)]
        self.assertEqual({name for name in functions if not name.startswith("_") and name != "applied"},
                         {*SHOWS, *ELASTIC})


if __name__ == "__main__":
    unittest.main()
