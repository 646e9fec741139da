"""Runs each example of docs/torch_training.md; all ranks must have equal weights after it."""

import re
import sys
import traceback

import rank
import torch

import maypole.torch as hvd

rank.started()
with open(sys.argv[1], encoding="utf-8") as f:
    examples = re.findall(r"^```python\n(.*?)^```", f.read(), re.M | re.S)
for number, example in enumerate(examples):
    names = {"__name__": "__main__"}
    try:
        exec(compile(example, "example %d" % number, "exec"), names)
    except Exception:
        traceback.print_exc()
        sys.exit("example %d of the page failed:\n%s" % (number, example))
    weights = [p.detach() for p in names["model"].parameters()]
    for of_rank in hvd.allgather_object(weights):
        assert all(torch.equal(a, b) for a, b in zip(of_rank, weights)), example
rank.record(examples=len(examples))
