"""Drivers for ray_test.py: `python ray_programs.py NAME ARGS` runs the function NAME in a Ray cluster (RAY_ADDRESS)."""

import json
import os
import signal
import sys
import time

import numpy as np
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import harness
import maypole
from maypole.ray import RayExecutor

SETTINGS = {"timeout_s": 120, "placement_group_timeout_s": 100}


def say(name, value):
    print("SAID " + json.dumps([name, value]), flush=True)


def settings(**changes):
    return RayExecutor.create_settings(**{**SETTINGS, **changes})


def started(executor, *args, **kwargs):
    executor.start(*args, **kwargs)
    return executor


# --- What ranks run


def where():
    import maypole as hvd
    hvd.init()
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    places = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    for prefix in ("MAYPOLE_", "HOROVOD_"):
        assert places == [int(os.environ[prefix + name]) for name in names], prefix
    return {"place": places, "node": ray.get_runtime_context().get_node_id(), "extra": os.environ.get("EXTRA"),
            "name": os.environ["MAYPOLE_NODE"], "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "timeout": os.environ["MAYPOLE_START_TIMEOUT"], "checksums": os.environ.get("MAYPOLE_CHECKSUMS")}


def summed(value, elements=50000):
    import maypole as hvd
    hvd.init()
    got = hvd.allreduce(np.full(elements, hvd.rank() + value), op=hvd.Sum, name="sum")
    assert got.min() == got.max()
    return float(got[0])


class Counter:
    """A stateful executable."""

    def __init__(self, start, step=1):
        import maypole as hvd
        hvd.init()
        self.value, self.step = start + hvd.rank(), step

    def next(self):
        self.value += self.step
        return self.value


def torch_losses(steps, rank, size):
    """Trains a small model on this rank's part of the data; the losses of the whole batches, and the last weights."""
    import torch
    import maypole.torch as hvd
    torch.manual_seed(1)
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if size > 1:
        hvd.init()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[rank::size]), y[rank::size])
        loss.backward()
        optimizer.step()
        losses.append(float(hvd.allreduce(loss.detach(), name="loss")) if size > 1 else float(loss.detach()))
    return losses, [p.detach().numpy().ravel().tolist() for p in model.parameters()]


def train_elastic(stop):
    """Counts steps until the file `stop` exists, at most; returns steps, the sizes seen and this process's steps."""
    import maypole as hvd
    from maypole import elastic
    from maypole.common.objects import broadcast_object
    from maypole.ray import ray_logger
    hvd.init()
    own = []

    @elastic.run
    def go(state):
        while not state.stopped:
            # All ranks must agree, and see the same steps.
            seen = hvd.allreduce(np.array([1.0, float(os.path.exists(stop))]), op=hvd.Sum, name="step")
            assert seen[0] == hvd.size()
            state.step += 1
            state.stopped = bool(seen[1] > 0)
            own.append(state.step)
            ray_logger.log([state.step, hvd.size(), os.environ["MAYPOLE_NODE"]])
            time.sleep(0.05)
            state.commit()
        return state.step

    step = go(elastic.ObjectState(broadcast_object, hvd.rank, step=0, stopped=False))
    assert own == sorted(own)
    return {"steps": step, "rank": hvd.rank(), "size": hvd.size(), "node": os.environ["MAYPOLE_NODE"]}


# --- Drivers


def values():
    """A static job on two nodes: its environment, values, order, state, callbacks and training."""
    executor = started(RayExecutor(settings(), num_workers=4), extra_env_vars={"EXTRA": 7})
    say("where", executor.run(where))
    say("sums", [executor.run(summed, args=[1]), executor.run(summed, kwargs={"value": 2, "elements": 3})])
    refs = executor.run_remote(summed, args=[3])
    say("remote", [isinstance(refs[0], ray.ObjectRef), ray.get(refs)])
    heard = []

    def talk():
        import maypole as hvd
        from maypole.ray import ray_logger
        ray_logger.log({"from": hvd.rank()})
        ray_logger.log({"every": hvd.rank()}, chief_only=False)

    executor.run(talk, callbacks=[heard.append])
    say("heard", sorted(heard, key=str))
    say("single", executor.execute_single(lambda executable: [executable, int(os.environ["MAYPOLE_RANK"])]))
    losses = executor.run(lambda: torch_losses(10, int(os.environ["MAYPOLE_RANK"]), 4))
    say("trained", losses)
    executor.shutdown()
    executor.shutdown()
    say("alone", torch_losses(10, 0, 1))


def spread():
    """So many ranks on each node; objects that keep a state; start() after shutdown()."""
    executor = RayExecutor(settings(), num_hosts=2, num_workers_per_host=2)
    executor.start(Counter, [10], {"step": 5})
    say("where", executor.run(where))
    say("counted", [executor.execute(lambda counter: counter.next()) for _ in range(2)])
    executor.shutdown()
    executor.start()
    say("again", executor.run(summed, args=[1]))
    executor.shutdown()


def in_a_group():
    """From an actor that runs in a placement group, as a trial of Ray Tune does: the ranks run in the group, too."""
    group = placement_group([{"CPU": 1}] * 3)
    ray.get(group.ready())

    @ray.remote(num_cpus=1)
    def trial():
        executor = started(RayExecutor(settings(), num_workers=2))
        found = executor.run(where)
        executor.shutdown()
        groups = ray.util.placement_group_table().values()
        return found, sum(group["state"] == "CREATED" for group in groups)

    say("where", ray.get(trial.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0)).remote()))


def failing(how):
    """Rank 2 of 4 fails while the others wait for it."""
    executor = started(RayExecutor(settings(), num_workers=4))
    executor.run(summed, args=[1])
    say("ready", True)

    def fail():
        import maypole as hvd
        if hvd.rank() == 2:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no data")
        hvd.allreduce(np.ones(3), name="fc2.weight")

    began = time.monotonic()
    try:
        executor.run(fail)
    except maypole.RankError as error:
        say("error", str(error))
        say("rank", error.rank)
        say("kinds", [isinstance(error, kind) for kind in (ray.exceptions.RayActorError, ValueError)])
    say("seconds", time.monotonic() - began)
    if how != "killed":  # the ranks are still there; they have left the job
        say("again", executor.run(summed, args=[1]))
    executor.shutdown()
    say("shut down", True)


def waiting():
    """Runs until it is killed."""
    executor = started(RayExecutor(settings(), num_workers=4))
    executor.run(summed, args=[1])
    say("ready", True)
    executor.run(time.sleep, args=[1000])


def refused():
    """What cannot be started, and says why."""
    for name, change, make in (
            ("too many", {"placement_group_timeout_s": 1}, lambda s: RayExecutor(s, num_workers=100)),
            ("no such interface", {"nics": ["nosuch0"]}, lambda s: RayExecutor(s, num_workers=1)),
            ("no program", {}, lambda s: RayExecutor(s, num_workers=1))):
        executor = make(settings(**change))
        try:
            executor.start(extra_env_vars={"MAYPOLE_BIN": "/nowhere"} if name == "no program" else None)
        except (TimeoutError, RuntimeError) as error:
            say(name, f"{type(error).__name__}: {error}")
    try:
        executor.run(where)
    except RuntimeError as error:
        say("not started", str(error))


def given_coordinator():
    """MAYPOLE_COORDINATOR and MAYPOLE_SECRET_FILE are in the environment."""
    executor = started(RayExecutor(settings(), num_workers=2))
    say("sums", executor.run(summed, args=[1]))
    of_it = "--coordinator=" + os.environ["MAYPOLE_COORDINATOR"]
    # guard.py has the flags of its daemon on its own command line.
    programs = [os.path.basename(argv[0]) for _, argv in harness.processes().values()
                if of_it in argv and "--executor" not in argv]
    say("daemons", [program for program in programs if program.startswith("maypole-")])
    executor.shutdown()


def elastic(stop, least, most):
    """Ranks come and go with Ray's nodes."""
    executor = started(RayExecutor(settings(), min_workers=int(least), max_workers=int(most)))
    heard = []

    def hear(entry):
        if not heard or heard[-1][1:] != entry[1:]:
            say(f"{entry[1]} ranks, {len(heard)}", entry)
            heard.append(entry)
        say("size", entry[1])

    say("results", executor.run(train_elastic, args=[stop], callbacks=[hear]))
    executor.shutdown()


def hopeless():
    """A function that always fails ends an elastic job."""
    executor = started(RayExecutor(settings(), min_workers=1, cooldown_range=(0.1, 0.1)))

    def fail():
        raise ValueError("no data")

    try:
        executor.run(fail)
    except maypole.RankError as error:
        say("error", str(error))
        say("cause", type(error.__cause__).__name__)


class Shrinking:
    """A discovery: all nodes, and one only as soon as the file exists."""

    def __init__(self, file):
        self.file = file

    def find_available_hosts_and_slots(self):
        return {"127.0.0.2": 2} if os.path.exists(self.file) else {"127.0.0.2": 2, "127.0.0.3": 1}


def shrinking(stop, shrink):
    """The user's discovery takes a node away: its rank leaves at a commit, and nothing is lost."""
    of_job = settings()
    of_job.discovery = Shrinking(shrink)
    executor = started(RayExecutor(of_job, min_workers=1, override_discovery=False, reset_limit=1))
    executor_callbacks = [lambda entry: say("size", entry[1])]
    say("results", executor.run(train_elastic, args=[stop], callbacks=executor_callbacks))


def shim():
    """A script of Horovod: the package horovod of the shim, in the driver and in the ranks."""
    from horovod.ray import ElasticRayExecutor
    from horovod.ray import RayExecutor as Executor

    def rank():
        import horovod.common.basics
        hvd = horovod.common.basics.HorovodBasics()
        hvd.init()
        return [horovod.__version__, hvd.rank()]

    executor = Executor(Executor.create_settings(timeout_s=120), num_workers=2)
    executor.start()
    say("ranks", executor.run(rank))
    executor.shutdown()
    older = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=120))
    older.start()
    say("elastic", older.run(rank))


if __name__ == "__main__":
    ray.init(_node_ip_address=os.environ["RAY_TEST_IP"], log_to_driver=True)
    globals()[sys.argv[1]](*sys.argv[2:])
