"""torch.distributed on CUDA tensors: init_process_group("maypole") with each site, beside NCCL and Gloo."""

import re
import sys

import bench
from day import Skip

_SITES = ("agent", "host")
_SOCKETS = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo"}
# On two nodes of a rank each; all of tests/programs/torch_distributed/libraries.py that this machine may have.
_LIBRARIES = {"Accelerate": "accelerate", "Hugging Face Trainer": "transformers", "torchmetrics": "torchmetrics",
              "Lightning": "lightning.pytorch", "Fabric": "lightning.fabric"}
_SIZES = "64KiB,1MiB,16MiB,64MiB"
_COMPILED = "torch.compile"


def _env(day, **more):
    """reference: NCCL takes ranks on one GPU for ranks of several hosts (programs.py)."""
    device = "cpu" if day.rehearsal else "cuda:0"
    return {"PROGRAMS_DEVICE": device, "REFERENCE": "gloo" if day.rehearsal else "nccl", "HF_HUB_OFFLINE": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1", **_SOCKETS, **more}


def _collectives(day, site, nodes):
    with day.check("collectives, 2 ranks on %d nodes, %s" % (nodes, site)) as values:
        command = ["with_host_id.py", [day.program("collectives.py")]] if nodes > 1 else ["collectives.py"]
        with day.job(2, *command, nodes=nodes, env=_env(day, MAYPOLE_GPU_SITE=site)) as job:
            job.check_ok(60)
            values["equal"] = int(re.search(r"equal: (\d+) operations", job.stdout()).group(1))


def _streams(day, site, nodes):
    with day.check("streams, 2 ranks on %d nodes, %s" % (nodes, site)) as values:
        command = ["with_host_id.py", [day.program("torch_group_streams.py")]] if nodes > 1 else ["torch_group_streams.py"]
        with day.job(2, *command, nodes=nodes, env=_env(day, MAYPOLE_GPU_SITE=site)) as job:
            job.check_ok(40)
            records = job.records()
        values.update(right=records[0]["right"], on_gpu=[record["on_gpu"] for record in records])
        wrong = [difference for record in records for difference in record["differences"]]
        if wrong:
            raise AssertionError("%d results are wrong: %s" % (len(wrong), wrong[:4]))
        if not day.rehearsal and site != "host" and 0 in values["on_gpu"]:
            raise AssertionError("operations do not run on the GPU")


def _equal(day, values, job, seconds):
    """Puts in the programs that were equal to the reference's, and what each took; raises if one was not."""
    status = job.wait(seconds)
    text = job.stdout()
    equal = re.search(r"equal: (.*)", text)
    values["equal"] = equal.group(1).split("; ") if equal else []
    values["seconds"] = dict(re.findall(r"maypole: (.*): ([\d.]+) s$", job.stderr(), re.M))
    if status != 0:
        print(text, job.stderr(), flush=True)
        raise AssertionError("status %s: %s" % (status, re.sub(r"(?m)^.*equal: .*$", "", text)[-1200:]))


def _programs(day, names, what, seconds, env, nodes=1):
    with day.check("%s, 2 ranks on %d nodes" % (what, nodes)) as values:
        command = ["with_host_id.py", [day.program("programs.py"), *names]] if nodes > 1 else ["programs.py", names]
        with day.job(2, *command, nodes=nodes, env=_env(day, **env)) as job:
            _equal(day, values, job, seconds)


def _libraries(day):
    names = [name for name, module in _LIBRARIES.items() if day.module(module)]
    with day.check("training libraries, 2 ranks on 2 nodes") as values:
        if not names:
            raise Skip("none of them is there")
        with day.job(2, "with_host_id.py", [day.program("libraries.py"), *names], nodes=2, env=_env(day)) as job:
            _equal(day, values, job, 60)


def _names(day):
    """What programs.py has with this torch."""
    code = "import sys; sys.path.insert(0, %r); import programs; print(chr(10).join(programs.PROGRAMS))" % day.programs
    said = day.run([sys.executable, "-B", "-c", code], 30, {"PYTHONPATH": day.python_path()}).stdout
    return [line for line in said.splitlines() if line]


def run(day):
    with day.check("torch.distributed", "noted") as values:
        code = "import torch, maypole.torch.distributed; print(torch.__version__)"
        done = day.run([sys.executable, "-B", "-c", code], 30, {"PYTHONPATH": day.python_path()}, expect=None)
        values["torch"] = done.stdout.split()[-1]
        values["there"] = done.returncode == 0
    if not values["there"]:
        day.skip("all", "torch has no maypole.torch.distributed: " + done.stdout.strip().splitlines()[-1])
        return
    names = _names(day)
    for site in day.some(_SITES):
        _collectives(day, site, 1)
        _streams(day, site, 1)
    plain = [name for name in names if not name.startswith(_COMPILED)]
    _programs(day, plain[:2] if day.rehearsal else plain, "programs", 60, {"MAYPOLE_GPU_SITE": "agent"})
    if not day.rehearsal:  # NCCL needs a driver that is real
        for site in ("agent", "client"):
            _collectives(day, site, 2)
            _streams(day, site, 2)
        _programs(day, plain, "programs", 60, {"MAYPOLE_GPU_SITE": "client"}, nodes=2)
        _programs(day, [name for name in names if name.startswith(_COMPILED)], "compiled programs", 120,
                  {"MAYPOLE_GPU_SITE": "agent"})
        _libraries(day)
    with day.check("all_reduce beside Gloo, 2 ranks", "measured") as values:
        bench.measure(day, values, 2, "group,staged,gloo", "4KiB" if day.rehearsal else _SIZES,
                      0.5 if day.rehearsal else 8, {"MAYPOLE_GPU_HOST_BYTES": ""}, resnet=not day.rehearsal)
