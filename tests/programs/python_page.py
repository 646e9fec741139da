"""Runs the examples of docs/python.md in their order, with the names that they take from a script around them.

It leaves out the last one, of maypole.run(), which starts jobs: //tests:run_function_test runs that.
"""

import re
import sys

import rank
import torch

rank.started()
with open(sys.argv[1], encoding="utf-8") as f:
    examples = re.findall(r"^```python\n(.*?)^```", f.read(), re.M | re.S)
start, process_sets, arena = [example for example in examples if "maypole.run(" not in example]
names = {"__name__": "__main__"}
exec(start, names)
hvd = names["hvd"]
hvd.init()

names["x"] = torch.full((4,), 1.0 + hvd.rank())
exec(process_sets, names)
is_over = names["evens"].process_set_id is None

model = torch.nn.Linear(8, 4)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
names.update(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
exec(arena, names)
in_arena = hvd.arena_statistics()["tensors"]
torch.manual_seed(hvd.rank())
for _ in range(3):
    names["optimizer"].zero_grad()
    model(torch.randn(5, 8)).sum().backward()
    names["optimizer"].step()
everyones = hvd.allgather_object([p.detach().tolist() for p in model.parameters()])
x = names["x"]
x.fill_(hvd.rank())
hvd.allreduce_(x[500:], name="x")
rank.record(is_over=is_over, in_arena=in_arena, weights_are_equal=all(w == everyones[0] for w in everyones),
            x=[x[0, 0].item(), x[500, 0].item()])
