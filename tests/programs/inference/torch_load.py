"""Loads what torch_train.py has saved: torch_load.py DIRECTORY."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # for python3 -I

import without_maypole  # noqa: E402
import torch  # noqa: E402
import torch_model  # noqa: E402


def load(name):
    return torch.load(os.path.join(sys.argv[1], name))


expected = load("predicted.pt")
model = torch_model.make(torch.nn.BatchNorm2d).eval()
untrained = model(expected["x"])
model.load_state_dict(load("state_dict.pt"))
traced = torch.jit.load(os.path.join(sys.argv[1], "traced.pt"))
for predict in (model, traced):
    with torch.no_grad():
        apart = (predict(expected["x"]) - expected["y"]).abs().max().item()
    assert apart < 1e-6, (predict, apart)
assert (untrained - expected["y"]).abs().max().item() > 0.01  # so the comparison can fail

# The optimizer's state is that of the plain optimizer, which goes on with it.
optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
optimizer.load_state_dict(load("optimizer.pt"))
assert optimizer.param_groups[0]["lr"] == 0.01
assert [int(state["step"]) for state in optimizer.state.values()] == [20] * len(optimizer.param_groups[0]["params"])
model.train()(expected["x"]).sum().backward()
optimizer.step()

# A pickled model has its classes' names: this one needs maypole.torch.
try:
    load("whole.pt")
    raise AssertionError("a model with SyncBatchNorm was unpickled without Maypole")
except ImportError as error:
    assert "maypole" in str(error), error

without_maypole.check()
print("equal")
