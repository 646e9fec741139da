"""`import horovod...` gives Maypole's own objects, in every kind of interpreter."""

import importlib
import inspect
import multiprocessing
import os
import subprocess
import sys

import horovod
import horovod.runner
import horovod.torch as hvd
import maypole.torch
import rank
from horovod.common import basics, elastic, exceptions, process_sets, util
from horovod.runner.common.util import secret, settings, timeout
from horovod.torch import compression, functions, mpi_ops, optimizer, sync_batch_norm
from horovod.torch.mpi_ops import allreduce_async_, is_homogeneous, synchronize
from maypole.common import exceptions as own

import torch

# Sections 1.1 and 1.2 of Horovod's interface, without what is not there yet.
NAMES = """
init shutdown is_initialized size local_size cross_size rank local_rank cross_rank
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built
start_timeline stop_timeline
Average Sum Adasum Min Max Product ProcessSet global_process_set add_process_set remove_process_set
HorovodInternalError HostsUpdatedInterrupt
allreduce allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_
grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async
broadcast broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async
grouped_reducescatter grouped_reducescatter_async join barrier poll synchronize
broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object
DistributedOptimizer SyncBatchNorm Compression
""".split()
RUN = """
func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile
host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo use_mpi
mpi_args network_interface network_interfaces executable np min_np max_np
""".split()


def in_child(queue):
    child = importlib.import_module("horovod.torch")
    queue.put((child.allreduce.__module__, child.is_initialized()))


def check_identity():
    for name in NAMES:
        assert getattr(hvd, name) is getattr(maypole.torch, name), name
        if hasattr(mpi_ops, name):
            assert getattr(mpi_ops, name) is getattr(hvd, name), name
    for module, names in ((functions, "broadcast_parameters broadcast_object"), (compression, "Compression"),
                          (optimizer, "DistributedOptimizer"), (sync_batch_norm, "SyncBatchNorm"),
                          (mpi_ops, "allreduce join Adasum rank is_initialized global_process_set poll")):
        assert module.__name__.startswith("horovod."), module
        for name in names.split():
            assert getattr(module, name) is getattr(hvd, name), name
    for module, names in ((hvd.elastic, "run TorchState ElasticSampler"), (hvd.elastic.state, "TorchState"),
                          (hvd.elastic.sampler, "ElasticSampler")):
        assert module.__name__.startswith("horovod."), module
        for name in names.split():
            assert getattr(module, name) is getattr(maypole.torch.elastic, name), name
    assert issubclass(hvd.elastic.TorchState, elastic.ObjectState) and elastic.run_fn
    assert exceptions.HorovodInternalError is own.HorovodInternalError is hvd.HorovodInternalError
    assert issubclass(exceptions.HorovodVersionMismatchError, ImportError)
    assert process_sets.ProcessSet is hvd.ProcessSet
    assert basics.HorovodBasics(__file__, "mpi_lib_v2").rank is hvd.rank
    assert basics.HorovodBasics(__file__).Adasum == 2
    assert horovod.__version__ == "0.28.1"
    assert list(inspect.signature(horovod.run).parameters) == RUN and horovod.runner.run is horovod.run
    assert hvd.start_timeline is maypole.torch.start_timeline


def check_util():
    assert util.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert [n for n in range(9) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
    assert util.extension_available("torch") and not util.extension_available("mxnet")
    assert util.gpu_available("torch") == torch.cuda.is_available()
    assert util.is_iterable([]) and not util.is_iterable(3)
    with util.env(HOROVOD_TEST="1", HOROVOD_NONE=None):
        assert os.environ["HOROVOD_TEST"] == "1" and "HOROVOD_NONE" not in os.environ
    assert "HOROVOD_TEST" not in os.environ


def check_built():
    """Scripts multiply the learning rate of Adasum by local_size() if nccl_built(): Maypole's Adasum takes each rank by
    itself."""
    for module in (hvd, util, maypole.torch):
        for name in ("mpi", "nccl", "ddl", "ccl", "rocm"):
            assert not getattr(module, name + "_built")(verbose=True), name
        assert module.gloo_built(verbose=True) and module.cuda_built(True)


def check_settings():
    of_job = settings.Settings(hosts="h1:2", num_proc=2, verbose=2, key=secret.make_secret_key(),
                               start_timeout=timeout.Timeout(30, "not within {timeout} s"))
    assert isinstance(of_job, settings.BaseSettings)
    assert (of_job.hosts, of_job.num_proc, of_job.verbose, of_job.elastic, of_job.nics) == ("h1:2", 2, 2, False, None)
    assert len(of_job.key) == 32 and 0 < of_job.start_timeout.remaining() <= 30
    of_job.start_timeout.check_time_out_for("a test")
    try:
        timeout.Timeout(-1, "not within {timeout} s").check_time_out_for("a test")
    except TimeoutError as error:
        assert str(error) == "not within -1 s (a test)"
    else:
        assert False


def check_environment():
    said = {name: int(os.environ["HOROVOD_" + name])
            for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")}
    assert said == {"RANK": hvd.rank(), "SIZE": hvd.size(), "LOCAL_RANK": hvd.local_rank(),
                    "LOCAL_SIZE": hvd.local_size(), "CROSS_RANK": hvd.cross_rank(), "CROSS_SIZE": hvd.cross_size()}
    assert os.environ["HOROVOD_HOSTNAME"] == "localhost"


def check_interpreters():
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=in_child, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == ("maypole.torch.ops", False)
    process.join()
    said = subprocess.run([sys.executable, "-c", "import horovod.torch as h; print(h.Sum, h.__name__)"],
                          capture_output=True, text=True, check=True, timeout=60).stdout
    assert said == "1 horovod.torch\n", said


def main():
    hvd.init()
    check_identity()
    check_util()
    check_built()
    check_settings()
    check_environment()
    assert is_homogeneous() in (True, False)
    x = torch.ones(2)
    synchronize(allreduce_async_(x, name="x", op=mpi_ops.handle_average_backwards_compatibility(None, False)))
    assert x.tolist() == [float(hvd.size())] * 2
    try:
        hvd.broadcast(torch.ones(1), 99)
    except ValueError:
        pass
    model = torch.nn.Linear(1, 1)
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    assert isinstance(wrapped, optimizer._DistributedOptimizer)
    if hvd.rank() == 0:
        check_interpreters()
    hvd.barrier()
    rank.record(names=len(NAMES))
    hvd.shutdown()


if __name__ == "__main__":
    main()
