"""LocalSGD and DiLoCo: ranks as threads, compared with their formulas on one process."""

import copy
import io
import unittest

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position

RANKS = 2


def model():
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):
            p.copy_((torch.arange(p.numel()) + i).cos().view_as(p) / 2)
    return made


def batch(rank, step):
    x = (torch.arange(15.0) * (rank + 1) + step).sin().view(5, 3)
    return x, x.sum(1, keepdim=True).sin()


def train(trained, optimizer, rank, step):
    x, y = batch(rank, step)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(trained(x), y).backward()
    optimizer.step()


def inner(trained):
    return torch.optim.AdamW(trained.parameters(), lr=0.05)


def outer(trained):
    return torch.optim.SGD(trained.parameters(), lr=0.7, momentum=0.9, nesterov=True)


def values(trained):
    return [p.detach().clone() for p in trained.parameters()]


class Formula:
    """DiLoCo as its papers write it, of all replicas in one process."""

    def __init__(self, fragments, sync_every, delay=0, alpha=0.0):
        self.replicas = [model() for _ in range(RANKS)]
        self.inner = [inner(replica) for replica in self.replicas]
        self.agreed = model()
        self.outer = outer(self.agreed)
        self.fragments, self.interval = fragments, sync_every // len(fragments)
        self.delay, self.alpha = delay, alpha
        self.step = 0

    def train(self):
        for rank, (replica, optimizer) in enumerate(zip(self.replicas, self.inner)):
            train(replica, optimizer, rank, self.step)
        self.step += 1
        fragment = self.fragments[(self.step - 1) // self.interval % len(self.fragments)]
        agreed = list(self.agreed.parameters())
        theirs = [list(replica.parameters()) for replica in self.replicas]
        with torch.no_grad():
            if self.step % self.interval == (self.interval - self.delay) % self.interval:
                self.mean = {i: agreed[i] - sum(own[i] for own in theirs) / RANKS for i in fragment}
            if self.step % self.interval == 0:
                for i, p in enumerate(agreed):
                    p.grad = self.mean.get(i)
                self.outer.step()
                for own in theirs:
                    for i in fragment:
                        own[i].copy_(self.alpha * own[i] + (1 - self.alpha) * agreed[i])


class LocalSGDTest(fake_library.TwoRanks):

    def test_average_of_weights(self):
        replicas = [model() for _ in range(RANKS)]
        optimizers = [inner(replica) for replica in replicas]
        expected = []
        for step in range(7):
            for rank in range(RANKS):
                train(replicas[rank], optimizers[rank], rank, step)
            if step % 3 == 2:
                with torch.no_grad():
                    for both in zip(*(replica.parameters() for replica in replicas)):
                        mean = sum(both) / RANKS
                        for p in both:
                            p.copy_(mean)
            expected.append([values(replica) for replica in replicas])

        def run(rank):
            trained = model()
            optimizer = inner(trained)
            got, synced = [], []
            with hvd.LocalSGD(trained, optimizer, sync_every=3) as local:
                for step in range(7):
                    train(trained, optimizer, rank, step)
                    got.append(values(trained))
                    synced.append(local.is_synced)
                local.sync()
                end = values(trained)
            train(trained, optimizer, rank, 0)  # on its own again: nothing is left pending
            self.assertNotIn("step", vars(optimizer))
            return got, synced, end

        results = self.both(run)
        for rank, (got, synced, _) in enumerate(results):
            for step in range(7):
                torch.testing.assert_close(got[step], expected[step][rank])
            self.assertEqual(synced, [False, False, True] * 2 + [False])
        for ours, theirs in zip(results[0][2], results[1][2]):
            self.assertTrue(torch.equal(ours, theirs))

    def test_arguments(self):

        def run(_):
            trained = model()
            for wrong in (0, -1, 2.5):
                with self.assertRaisesRegex(ValueError, f"LocalSGD: sync_every={wrong}, expected a positive number"):
                    hvd.LocalSGD(trained, inner(trained), sync_every=wrong)

        self.both(run)

    def test_a_distributed_optimizer_within_it_is_refused(self):

        def run(_):
            trained = model()
            optimizer = inner(trained)
            with hvd.LocalSGD(trained, optimizer, sync_every=2):
                with self.assertRaisesRegex(ValueError, "step_and_agree"):
                    hvd.DistributedOptimizer(optimizer)

        self.both(run)

    def test_a_scheduler_that_is_made_within_it(self):

        def run(rank):
            trained = model()
            optimizer = inner(trained)
            with hvd.LocalSGD(trained, optimizer, sync_every=2):
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
                for step in range(4):
                    train(trained, optimizer, rank, step)
                    schedule.step()
            train(trained, optimizer, rank, 4)
            return values(trained), optimizer.param_groups[0]["lr"]

        (ours, lr), (theirs, _) = self.both(run)
        self.assertEqual(lr, 0.05 / 16)
        self.assertFalse(all(torch.equal(a, b) for a, b in zip(ours, theirs)))  # of the last step


class DiLoCoTest(fake_library.TwoRanks):

    def compare(self, formula, make, steps):
        """make(model, optimizer): a DiLoCo."""
        expected = []
        for _ in range(steps):
            formula.train()
            expected.append([values(replica) for replica in formula.replicas])

        def run(rank):
            trained = model()
            optimizer = inner(trained)
            got = []
            with make(trained, optimizer):
                for step in range(steps):
                    train(trained, optimizer, rank, step)
                    got.append(values(trained))
            return got

        results = self.both(run)
        for rank, got in enumerate(results):
            for step in range(steps):
                torch.testing.assert_close(got[step], expected[step][rank], msg=f"rank {rank}, step {step}")
        return results

    def test_formula(self):
        ours, theirs = self.compare(Formula([[0, 1, 2, 3]], 4),
                                    lambda m, optimizer: hvd.DiLoCo(m, optimizer, outer(m), sync_every=4), 13)
        for step in (3, 7, 11):
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(ours[step], theirs[step])), step)

    def test_fragments(self):
        self.compare(Formula([[0, 1], [2, 3]], 6),
                     lambda m, optimizer: hvd.DiLoCo([m[0], m[2]], optimizer, outer(m), sync_every=6), 14)

    def test_fragments_beside_the_training(self):
        self.compare(
            Formula([[0, 1], [2, 3]], 8, delay=2, alpha=0.25), lambda m, optimizer: hvd.DiLoCo(
                [m[0], m[2]], optimizer, outer(m), sync_every=8, fragment_sync_delay=2, fragment_update_alpha=0.25),
            18)

    def test_the_inner_gradients_stay(self):

        def run(rank):
            trained = model()
            optimizer = inner(trained)
            with hvd.DiLoCo(trained, optimizer, outer(trained), sync_every=1):
                train(trained, optimizer, rank, 0)
            alone = model()
            train(alone, inner(alone), rank, 0)
            for p, expected in zip(trained.parameters(), alone.parameters()):
                self.assertTrue(torch.equal(p.grad, expected.grad))

        self.both(run)

    def test_half_precision_is_agreed_upon_in_float32(self):

        def run(rank):
            trained = model().to(torch.bfloat16)
            outer_optimizer = torch.optim.SGD(trained.parameters(), lr=1 / 1024)
            start = values(trained)
            with hvd.DiLoCo(trained, torch.optim.SGD(trained.parameters(), lr=1.0), outer_optimizer,
                            sync_every=1) as diloco:
                for _ in range(512):
                    with torch.no_grad():
                        for p in trained.parameters():
                            p.grad = torch.ones_like(p)
                    diloco._steps._optimizer.step()
            # 512 outer steps of about 1/1024, each too small for bfloat16.
            for before, p in zip(start, trained.parameters()):
                torch.testing.assert_close(before - p.detach(), torch.full_like(p, 0.5), atol=0.02, rtol=0)
            self.assertEqual({p.dtype for p in outer_optimizer.param_groups[0]["params"]}, {torch.float32})

        self.both(run)

    def test_compression(self):

        def run(rank):
            trained = model()
            optimizer = inner(trained)
            with hvd.DiLoCo(trained, optimizer, outer(trained), sync_every=2, compression=hvd.Compression.fp16):
                for step in range(4):
                    train(trained, optimizer, rank, step)
            return values(trained)

        ours, theirs = self.both(run)
        formula = Formula([[0, 1, 2, 3]], 2)
        for _ in range(4):
            formula.train()
        torch.testing.assert_close(ours, values(formula.replicas[0]), atol=1e-3, rtol=0)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(ours, theirs)))

    def test_state_in_the_middle_of_a_reduction(self):
        steps, saved_at = 16, 7  # the reduction of step 6 is under way

        def run(rank):
            trained = model()
            optimizer = inner(trained)
            outer_optimizer = outer(trained)
            with hvd.DiLoCo([trained[0], trained[2]], optimizer, outer_optimizer, sync_every=8,
                            fragment_sync_delay=2) as diloco:
                for step in range(steps):
                    if step == saved_at:
                        file = io.BytesIO()
                        torch.save([trained.state_dict(), optimizer.state_dict(), diloco.state_dict()], file)
                    train(trained, optimizer, rank, step)
            expected = values(trained)

            file.seek(0)
            saved = torch.load(file)
            trained = model()
            optimizer = inner(trained)
            with hvd.DiLoCo([trained[0], trained[2]], optimizer, outer(trained), sync_every=8,
                            fragment_sync_delay=2) as diloco:
                train(trained, optimizer, rank, 99)
                for part, state in zip((trained, optimizer, diloco), copy.deepcopy(saved)):
                    part.load_state_dict(state)
                for step in range(saved_at, steps):
                    train(trained, optimizer, rank, step)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(values(trained), expected)))

        self.both(run)

    def test_ranks_that_begin_differently(self):

        def run(rank):
            trained = model()
            with torch.no_grad():
                trained[2].bias += rank
            optimizer = inner(trained)
            with hvd.DiLoCo(trained, optimizer, outer(trained), sync_every=2):
                train(trained, optimizer, rank, 0)
                with self.assertRaisesRegex(
                        ValueError, "DiLoCo: the ranks begin with different weights of parameter '2.bias'.*"
                        "broadcast_parameters"):
                    train(trained, optimizer, rank, 1)
                with self.assertRaisesRegex(ValueError, "different weights"):  # also who catches it hears of it again
                    train(trained, optimizer, rank, 2)

        self.both(run)

    def test_settings_that_differ(self):

        def run(rank):
            trained = model()
            optimizer = inner(trained)
            with hvd.DiLoCo(trained, optimizer, outer(trained), sync_every=2, fragment_update_alpha=rank / 2):
                train(trained, optimizer, rank, 0)
                with self.assertRaisesRegex(
                        ValueError, "different settings of parameter '0.bias': fragment_update_alpha is 0.0 on rank 0 "
                        "and 0.5 on rank 1"):
                    train(trained, optimizer, rank, 1)

        self.both(run)

    def test_arguments(self):

        def run(_):
            m = model()
            tied = torch.nn.ModuleList([m[0], m[0]])
            for expected, call in [
                ("sync_every=3 with 2 fragments, expected a multiple",
                 lambda: hvd.DiLoCo([m[0], m[2]], inner(m), outer(m), 3)),
                ("sync_every=3 with 0 fragments", lambda: hvd.DiLoCo([], inner(m), outer(m), 3)),
                ("sync_every=0, expected a positive number of steps", lambda: hvd.DiLoCo(m, inner(m), outer(m), 0)),
                ("fragment_sync_delay=2, expected 0 to 1",
                 lambda: hvd.DiLoCo([m[0], m[2]], inner(m), outer(m), 4, fragment_sync_delay=2)),
                ("fragment_update_alpha=1.5, expected 0 to 1",
                 lambda: hvd.DiLoCo(m, inner(m), outer(m), 4, fragment_update_alpha=1.5)),
                ("Compression.powersgd",
                 lambda: hvd.DiLoCo(m, inner(m), outer(m), 4, compression=hvd.Compression.powersgd(1))),
                ("the parameter '1.weight' is also '0.weight' of another fragment; .*ModuleList",
                 lambda: hvd.DiLoCo(list(tied), inner(m), outer(m), 4)),
                ("it has 4, the fragments 2", lambda: hvd.DiLoCo(m[0], inner(m), outer(m), 4)),
                ("it lacks 2.bias, 2.weight", lambda: hvd.DiLoCo(m, inner(m), outer(m[0]), 4)),
            ]:
                with self.assertRaisesRegex(ValueError, expected):
                    call()
            stepped = outer(m)
            train(m, stepped, 0, 0)
            with self.assertRaisesRegex(ValueError, "has stepped already"):
                hvd.DiLoCo(m, inner(m), stepped, 4)

        self.both(run)


if __name__ == "__main__":
    unittest.main()
