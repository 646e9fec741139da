"""torch.distributed ranks that outlive a death: survive.py shrink|again|reconfigure|abort, in an elastic job of 3.

Each rank sums over the group; after three steps the last one kills itself. The others continue in their processes, as a
group of two. Each survivor records its rank before and after, sums, the error's text, and the seconds from the death to
the first sum without the dead one. (The launcher starts another process; it waits for the next membership epoch.)
"""

import datetime
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import maypole.torch.distributed  # noqa: F401 - has the method maypole://

DIR = os.environ["MAYPOLE_TEST_DIR"]
STEPS = 3


def write(name, value):
    path = os.path.join(DIR, name)
    with open(f"{path}.new.{os.getpid()}", "w", encoding="utf-8") as f:
        json.dump(value, f)
    os.rename(f.name, path)


def read(name, seconds=30):
    path, deadline = os.path.join(DIR, name), time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {name}")
        time.sleep(0.002)
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def total():
    tensor = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(tensor)
    return tensor.item()


def until_death(rank):
    """Returns the sums, and the error after the last rank's death."""
    sums = [total() for _ in range(STEPS)]
    if rank == 2:
        write("death", time.time())
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            total()
    except dist.DistBackendError as error:
        return sums, str(error)


def finish(rank, sums, text, first):
    """Sums and receives in the group of two, which has a group of its own."""
    seconds = time.time() - read("death") if os.path.exists(os.path.join(DIR, "death")) else None
    after = [first] + [total() for _ in range(STEPS)]
    group = dist.new_group([0, 1])
    received = torch.zeros(1)
    if dist.get_rank() == 0:
        assert dist.recv(received, group=group) == 1
    else:
        dist.send(torch.ones(1), 0, group=group)
        received += 1
    write(f"rank.{rank}.json", {"pid": os.getpid(), "sums": sums, "after": after, "error": text, "seconds": seconds,
                                "rank": dist.get_rank(), "size": dist.get_world_size(), "received": received.item()})
    dist.barrier()
    dist.destroy_process_group()


def shrink():
    dist.init_process_group("maypole", init_method="maypole://")
    rank = dist.get_rank()
    hooks = []
    if hasattr(dist.group.WORLD, "register_abort_hook"):
        dist.group.WORLD.register_abort_hook(7, lambda: hooks.append(time.time()))
    sums, text = until_death(rank)
    assert hooks, "the abort hook was not called"
    dist.shrink_group([2])
    finish(rank, sums, text, total())


def again():
    dist.init_process_group("maypole", init_method="maypole://")
    rank = dist.get_rank()
    sums, text = until_death(rank)
    dist.destroy_process_group()
    dist.init_process_group("maypole", init_method="maypole://")
    finish(rank, sums, text, total())


def reconfigure():
    """Handles go by files; the first one to come is 1 of the group, so that the order is not the job's."""
    if os.path.exists(os.path.join(DIR, "death")):
        time.sleep(60)  # started in place of the dead one: nobody wants its handle
    dist.init_process_group("maypole", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
    from torch.distributed.distributed_c10d import _get_reconfigure_handle, _reconfigure, _supports_reconfigure
    assert _supports_reconfigure()
    try:
        total()
    except dist.DistBackendError as error:
        assert "reconfigure() comes first" in str(error), error
    handle = _get_reconfigure_handle()
    place = 0
    while True:  # the first free one
        try:
            os.close(os.open(os.path.join(DIR, f"place.{place}"), os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            place += 1
    write(f"handle.{place}", handle)
    handles = [read(f"handle.{n}") for n in (1, 0, 2)]
    _reconfigure(uuid=1, handles=handles).wait()
    rank = dist.get_rank()
    assert rank == (1, 0, 2)[place] and dist.get_world_size() == 3, (rank, place)
    outputs = [torch.zeros(1) for _ in range(3)]
    dist.all_gather(outputs, torch.tensor([float(rank)]))
    assert [t.item() for t in outputs] == [0, 1, 2], outputs
    sums, text = until_death(rank)
    _reconfigure(uuid=2, handles=set(handles[:2])).wait()
    finish(rank, sums, text, total())


def abort():
    """Nobody dies: the last rank does not come, and another thread of each of the others aborts its wait."""
    import threading
    dist.init_process_group("maypole", init_method="maypole://")
    rank = dist.get_rank()
    sums, text = [total() for _ in range(STEPS)], ""
    if rank < 2:
        timer = threading.Timer(0.5, dist.group.WORLD.abort)
        timer.start()
        began = time.monotonic()
        try:
            total()
        except dist.DistBackendError as error:
            text = str(error)
        assert time.monotonic() - began < 5, text
        timer.join()
        try:
            total()
        except dist.DistBackendError as error:
            assert "it was aborted" in str(error), error
        write(f"aborted.{rank}", text)
    else:
        read("aborted.0")
        read("aborted.1")
    dist.distributed_c10d._abort_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("maypole", init_method="maypole://", timeout=datetime.timedelta(seconds=30))
    after = total()
    write(f"rank.{rank}.json", {"sums": sums, "after": [after], "error": text})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
