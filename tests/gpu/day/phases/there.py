"""What the machine has: the driver, the GPU and its features, libraries, and what Maypole's wheel reports."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys

from day import Skip

_NVIDIA_SMI = ("name", "driver_version", "memory.total", "memory.free", "compute_mode", "mig.mode.current",
               "clocks.max.sm", "clocks.max.memory", "pcie.link.gen.current", "pcie.link.width.current")
_PACKAGES = ("torch", "jax", "jaxlib", "cupy-cuda13x", "cupy-cuda12x", "nvidia-nccl-cu13", "nvidia-nccl-cu12",
             "mpi4py", "numpy")


def _machine():
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    with open("/proc/meminfo", encoding="ascii") as f:
        memory = int(f.readline().split()[1]) >> 10
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        model = re.search(r"^model name\s*: (.*)$", f.read(), re.M)
    return {"system": platform.platform(), "glibc": platform.libc_ver()[1], "python": platform.python_version(),
            "processor": model.group(1) if model else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "memory_mib": memory, "packages": found, "user": os.geteuid(),
            "shared_memory": shutil.disk_usage("/dev/shm").total}


def run(day):
    launcher = os.path.join(day.root, "client", "launcher", "maypolerun")
    with day.check("machine", "noted") as values:
        values.update(_machine())
    with day.check("driver", "noted") as values:
        values.update(json.loads(day.run([sys.executable, "-B", day.program("attributes.py")], 20).stdout))
    with day.check("nvidia-smi", "noted") as values:
        if shutil.which("nvidia-smi") is None:
            raise Skip("nvidia-smi is not on PATH")
        said = day.run(["nvidia-smi", "--query-gpu=" + ",".join(_NVIDIA_SMI), "--format=csv,noheader"], 20).stdout
        values.update(zip(_NVIDIA_SMI, (part.strip() for part in said.splitlines()[0].split(","))))
    with day.check("maypolerun --check-build") as values:
        values["text"] = day.run([launcher, "--check-build"], 20).stdout
        for what in ("NVIDIA driver", "GPU 0", "kernels"):
            if re.search(r"\[X\].*" + what, values["text"]):
                continue
            if what == "kernels" and day.rehearsal:
                raise Skip("this build has no kernels")
            raise AssertionError("it does not find: %s\n%s" % (what, values["text"]))
    with day.check("NCCL", "noted") as values:
        found = re.search(r"\[X\] NCCL ([\d.]+) \((.*?)\): (\S+)", day.run([launcher, "--check-build"], 20).stdout)
        if found is None:
            raise Skip("maypolerun --check-build finds none")
        values.update(version=found.group(1), found_by=found.group(2), path=found.group(3))
