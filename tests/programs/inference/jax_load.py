"""Loads what jax_train.py has saved: jax_load.py DIRECTORY."""

import os
import pickle
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # for python3 -I

import without_maypole  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

with open(os.path.join(sys.argv[1], "saved.pickle"), "rb") as f:
    saved = pickle.load(f)
params = saved["params"]
assert np.abs(saved["x"] @ params["w"] + params["b"] - saved["y"]).max() < 1e-6
# The state of chain(allreduce, adam): adam goes on with its part.
adam = optax.adam(0.1)
updates, state = adam.update(jax.tree_util.tree_map(lambda p: p * 0 + 1, params), saved["state"][1], params)
assert int(state[0].count) == 21

without_maypole.check()
print("equal")
