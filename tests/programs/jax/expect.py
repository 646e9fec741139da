"""What the checks of these programs have in common."""

import jax
import numpy as np


def as_it_is(function):
    return function


# Outside and inside jit.
BOTH = (as_it_is, jax.jit)


def equal(got, expected, tolerance=0.0):
    np.testing.assert_allclose(np.asarray(got, np.asarray(expected).dtype), expected, rtol=tolerance, atol=tolerance)


def raises(kind, text, function, *args, **kwargs):
    """Checks that the call, or the wait for its results, raises the error."""
    try:
        jax.block_until_ready(function(*args, **kwargs))
    except kind as error:
        assert text in str(error), "expected %r in: %s" % (text, error)
    else:
        raise AssertionError("nothing was raised; expected %s: %s" % (kind.__name__, text))
