"""Trains a small network on $DAY_DEVICE, with its gradients as tensors of their own and in buckets.

usage: torch_train.py STEPS

For both, records the losses, the parameters' bits and what ran on the GPU; also how long this process took to start.
The data are the same on every device; the larger gradients exceed the eager limit.
"""

import time

BEGAN = time.perf_counter()

import hashlib  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402

import maypole.torch as hvd  # noqa: E402
import rank  # noqa: E402
from maypole.common import basics  # noqa: E402

FEATURES, HIDDEN, BATCH = 64, 384, 64
DEVICE = torch.device(os.environ["DAY_DEVICE"])


def train(steps, buckets):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, HIDDEN),
                                torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)).to(DEVICE)
    truth = torch.randn(FEATURES, 1) / FEATURES**0.5
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
                                         named_parameters=model.named_parameters(), gradient_as_bucket_view=buckets)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    own = torch.Generator().manual_seed(100 + hvd.rank())
    before, losses, began = basics.counter("gpu_operations"), [], time.perf_counter()
    for _ in range(steps):
        x = torch.randn(BATCH, FEATURES, generator=own)
        y = torch.tanh(x @ truth)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.to(DEVICE)), y.to(DEVICE))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    seconds = time.perf_counter() - began
    mean = hvd.allreduce(torch.tensor(losses, dtype=torch.float64), name="losses.%d" % buckets).tolist()
    bits = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return {"losses": mean, "digest": hashlib.sha256(bits).hexdigest(), "ms_per_step": 1000 * seconds / steps,
            "on_gpu": basics.counter("gpu_operations") - before, "fallbacks": hvd.arena_statistics()["fallbacks"]}


def main():
    rank.started()
    started = {"imports": time.perf_counter() - BEGAN}
    hvd.init()
    started["init"] = time.perf_counter() - BEGAN
    torch.set_num_threads(1)
    torch.ones(8, 8, device=DEVICE) @ torch.ones(8, 8, device=DEVICE)
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    started["device"] = time.perf_counter() - BEGAN
    steps = int(sys.argv[1])
    rank.record(tensors=train(steps, False), buckets=train(steps, True), started_after_s=started)
    hvd.shutdown()


main()
