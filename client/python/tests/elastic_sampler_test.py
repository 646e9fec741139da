"""ElasticSampler: which samples, in which order, for how many ranks."""

import unittest

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
# pylint: disable=wrong-import-position
import maypole.torch as hvd
from maypole.torch.elastic.state import SamplerStateHandler


class ElasticSamplerTest(unittest.TestCase):

    def ranks(self, size, function):
        """Calls function(rank) on each of `size` ranks."""
        fake = fake_library.FakeLibrary(size)
        _native.use(fake)
        return fake_library.run_ranks(fake, function)

    def test_the_samples_are_dealt_out_in_turn(self):

        def rank(_):
            sampler = hvd.elastic.ElasticSampler(range(10, 17), shuffle=False)
            return list(sampler), len(sampler), sampler.num_replicas

        self.assertEqual(self.ranks(3, rank), [([0, 3, 6], 3, 3),
                                               ([1, 4, 0], 3, 3),
                                               ([2, 5, 1], 3, 3)])

    def test_each_sample_is_processed_once_although_the_ranks_change(self):
        for shuffle in (False, True):
            done = []
            state = None
            # Sizes of the job, and how many batches of 4 are processed in each.
            for size, batches in ((3, 2), (2, 1), (5, 0), (1, 3), (4, None)):

                def rank(_):
                    sampler = hvd.elastic.ElasticSampler(range(101), shuffle, 7)
                    if state is None:
                        sampler.set_epoch(2)
                    else:
                        sampler.load_state_dict(state)
                    mine = []
                    wanted = batches if batches is not None else 99
                    for b in range(min(wanted, -(-len(sampler) // 4))):
                        mine += sampler.get_indices(b, 4)
                        sampler.record_batch(b, 4)
                    return mine, sampler.state_dict(), list(sampler)

                results = self.ranks(size, rank)
                for mine, said, _ in results:
                    done += mine
                    self.assertEqual(said, results[0][1])
                state = results[0][1]
                self.assertEqual(state["epoch"], 2)
            self.assertEqual(set(done), set(range(101)))
            # The last samples of 4 ranks are filled up to a multiple of 4.
            left = 101 - 3 * 2 * 4 - 2 * 4 - 3 * 4
            self.assertEqual(len(done), 101 + -left % 4)
            self.assertEqual(state["processed_num"], 101)

    def test_epochs_have_different_orders_that_are_the_same_on_all_ranks(self):

        def rank(_):
            sampler = hvd.elastic.ElasticSampler(range(20), seed=3)
            orders = [list(sampler.remaining_indices)]
            sampler.record_batch(0, 5)
            sampler.set_epoch(1)
            orders.append(list(sampler.remaining_indices))
            other = hvd.elastic.ElasticSampler(range(20), seed=4)
            return orders + [list(other)]

        zero, one = self.ranks(2, rank)
        self.assertEqual(zero[:2], one[:2])
        self.assertEqual(sorted(zero[0]), list(range(20)))
        self.assertEqual(sorted(zero[1]), list(range(20)))
        self.assertNotEqual(zero[0], zero[1])
        self.assertNotEqual(zero[0][::2], zero[2])

    def test_fewer_samples_than_ranks_and_none(self):

        def rank(_):
            sampler = hvd.elastic.ElasticSampler(range(7), shuffle=False)
            sampler.record_batch(0, 1)
            sampler.reset()
            two = list(sampler)
            sampler.record_batch(0, 8)
            sampler.reset()
            return two, list(sampler), len(sampler), sampler.processed_num

        results = self.ranks(5, rank)
        self.assertEqual([r[0] for r in results], [[5], [6], [5], [6], [5]])
        for _, rest, length, done in results:
            self.assertEqual((rest, length, done), ([], 0, 7))

    def recorded(self, *batches, samples=100, size=2):
        """processed_num after record_batch(*b) for each of the batches."""

        def rank(_):
            sampler = hvd.elastic.ElasticSampler(range(samples), shuffle=False)
            for batch in batches:
                sampler.record_batch(*batch)
            return sampler.processed_num

        (number,) = set(self.ranks(size, rank))
        return number

    def test_each_call_is_a_batch_of_its_size_whatever_its_number(self):
        self.assertEqual(self.recorded((0, 8), (1, 8)), 32)
        self.assertEqual(self.recorded((0, 2), (1, 4), (2, 8)), 28)  # growing
        self.assertEqual(self.recorded((0, 8), (1, 8), (2, 3)), 38)  # the last one is smaller
        self.assertEqual(self.recorded((40, 8), (41, 8)), 32)  # counted since the epoch's beginning
        self.assertEqual(self.recorded((0, 30), (1, 30)), 100)  # filled up

    def test_no_sample_is_lost_with_batches_of_several_sizes_and_a_change_of_ranks(self):
        for numbered_from in (0, 7):
            done, state = [], None
            for size, sizes in ((2, (1, 2, 4, 8)), (3, (3, 5, 1)), (1, (100,))):

                def rank(_):
                    sampler = hvd.elastic.ElasticSampler(range(90), True, 5)
                    if state is not None:
                        sampler.load_state_dict(state)
                    mine, rest = [], list(sampler)
                    for number, batch in enumerate(sizes):
                        taken, rest = rest[:batch], rest[batch:]
                        mine += taken
                        sampler.record_batch(numbered_from + number, len(taken))
                    return mine, sampler.state_dict()

                results = self.ranks(size, rank)
                done += [sample for mine, _ in results for sample in mine]
                state = results[0][1]
            self.assertEqual(sorted(done), list(range(90)))

    def test_states_of_horovods_samplers(self):

        def rank(_):
            sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
            sampler.load_state_dict({"epoch": 1, "processed_num": 3})
            a = list(sampler.remaining_indices)
            sampler.load_state_dict({"epoch": 1, "processed_indices": [0, 5]})
            b = list(sampler.remaining_indices)
            sampler.record_batch(0, 2)  # 1, 2, 3, 4
            sampler.reset()
            return a, b, list(sampler.remaining_indices), sampler.processed_num

        self.assertEqual(self.ranks(2, rank),
                         [([3, 4, 5, 6, 7], [1, 2, 3, 4, 6, 7], [6, 7], 5)] * 2)

    def sync(self, prepare):
        """SamplerStateHandler.sync() on 3 ranks after prepare(rank, handler);
        returns the ranks' states."""

        def rank(r):
            handler = SamplerStateHandler(
                hvd.elastic.ElasticSampler(range(12), shuffle=False))
            prepare(r, handler)
            handler.sync()
            handler.save()
            state = handler.value.state_dict()
            handler.value.record_indices([11])
            handler.restore()
            self.assertEqual(handler.value.state_dict(), state)
            return state

        return self.ranks(3, rank)

    def test_sync_merges_what_ranks_recorded_and_takes_the_number_of_rank_0(self):

        def prepare(r, handler):
            handler.value.record_indices([r, 10 - r])
            if r == 0:
                handler.value.record_batch(0, 1)

        self.assertEqual(self.sync(prepare), [{
            "epoch": 0,
            "processed_num": 3,
            "processed_indices": {0, 1, 2, 8, 9, 10}
        }] * 3)

    def test_who_is_a_commit_ahead_or_behind(self):

        def prepare(r, handler):
            # Rank 0 has made 2 commits, rank 1 three, rank 2 one.
            for commit in range({0: 2, 1: 3, 2: 1}[r]):
                handler.value.record_indices([3 * commit + r])
                handler.save()
            handler.value.record_indices([11])  # not committed
            handler.restore()

        states = self.sync(prepare)
        # Rank 1's third is in nobody's model; what rank 2 had not committed is
        # processed again.
        self.assertEqual([s["processed_indices"] for s in states],
                         [{0, 3, 1, 4, 2}] * 3)

    def test_who_is_in_another_epoch_adds_nothing(self):

        def prepare(r, handler):
            handler.value.record_indices([r])
            handler.save()
            if r == 1:
                handler.value.set_epoch(1)
                handler.value.record_indices([5])
                handler.save()
            if r == 2:
                handler.value.set_epoch(7)

        self.assertEqual(self.sync(prepare), [{
            "epoch": 0,
            "processed_num": 0,
            "processed_indices": {0, 1}
        }] * 3)


if __name__ == "__main__":
    unittest.main()
