"""SyncBatchNorm.convert_sync_batchnorm(), and SyncBatchNorm of a process set."""

import copy
import unittest

import torch

import fake_library
from maypole import _native

_native.use(fake_library.FakeLibrary(2))
import maypole.torch as hvd  # pylint: disable=wrong-import-position


def make_model():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 1), torch.nn.BatchNorm2d(3, eps=1e-3),
        torch.nn.Sequential(torch.nn.Flatten(),
                            torch.nn.BatchNorm1d(12, affine=False)))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.arange(p.numel()).sin().view_as(p) + 0.5)
        model[1].running_mean.fill_(3.0)
    return model


class BatchNormTest(unittest.TestCase):

    def both(self, function):
        fake = fake_library.FakeLibrary(3)
        _native.use(fake)
        return fake_library.run_ranks(fake, function)

    def test_a_converted_model_is_one_batch_norm_over_all_ranks(self):
        x = torch.arange(6 * 2 * 4.0).cos().reshape(6, 2, 2, 2)

        def result(model, x):
            y = model(x)
            y.pow(2).sum().backward()
            return y, model[1].running_mean, model[2][1].running_var

        def rank(r):
            model = make_model()
            old = model[1]
            converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
            self.assertIs(converted, model)
            self.assertEqual([type(model[1]), type(model[2][1])],
                             [hvd.SyncBatchNorm] * 2)
            self.assertIs(model[1].weight, old.weight)
            self.assertIs(model[1].running_mean, old.running_mean)
            self.assertEqual((model[1].eps, model[2][1].affine), (1e-3, False))
            self.assertEqual(list(model.state_dict()),
                             list(make_model().state_dict()))
            return result(copy.deepcopy(model), x[2 * r:2 * r + 2])

        model = make_model()
        want, mean, variance = result(model, x)
        for r, (y, got_mean, got_variance) in enumerate(self.both(rank)):
            torch.testing.assert_close(y, want[2 * r:2 * r + 2])
            torch.testing.assert_close(got_mean, mean)
            torch.testing.assert_close(got_variance, variance)

    def test_of_a_process_set(self):
        x = torch.arange(6.0).reshape(3, 2, 1) ** 2

        def rank(r):
            ours = hvd.add_process_set([0, 2])
            layer = hvd.SyncBatchNorm.convert_sync_batchnorm(
                torch.nn.BatchNorm1d(1), process_set=ours)
            y = layer(x[r])
            y.sum().backward()
            return y.detach()

        got = self.both(rank)
        want = torch.nn.BatchNorm1d(1)(torch.cat((x[0], x[2]))).detach()
        torch.testing.assert_close(torch.cat((got[0], got[2])), want)
        torch.testing.assert_close(got[1],
                                   torch.nn.BatchNorm1d(1)(x[1]).detach())

    def test_the_mode_stays_and_lazy_layers_are_refused(self):
        _native.use(fake_library.FakeLibrary(2))
        layer = hvd.SyncBatchNorm.convert_sync_batchnorm(
            torch.nn.BatchNorm1d(2).eval())
        self.assertFalse(layer.training)
        with self.assertRaisesRegex(ValueError, "number of channels"):
            hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.LazyBatchNorm1d())


if __name__ == "__main__":
    unittest.main()
