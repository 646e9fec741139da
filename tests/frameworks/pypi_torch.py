"""The newest torch that pip finds on PyPI, for tests: downloaded once per version, and kept in the user's cache.

    python = pypi_torch.environment(directory)     # a venv in the directory that imports it; unittest.SkipTest without it
    python = pypi_torch.environment(directory, version="2.6.0")     # another version, from 2.1 on

PyPI's torch for Linux needs gigabytes of CUDA libraries before it can be imported. On a machine without a GPU it calls
none of them. So each is replaced by a small library of the same name and symbols, whose functions return an error; only
the CUDA runtime, with which torch registers its kernels while it is loaded, is the real one. All of it has 1.4 GB.
TORCH_VERSION=2.9.1 takes that version instead of the newest.
"""

import glob
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import unittest

PYTHON = "/usr/bin/python3"
# Requirements of torch that are not needed on a CPU.
_FOR_GPUS = re.compile(r"^(cuda|nvidia|triton)\b")
_CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)(?!da(rt)?\.)")
# The first letters of symbols that carry no version by which one sees whose they are.
_UNVERSIONED = {"libcufile": "cuFile", "libcusparseLt": "cusparseLt", "libnccl": "nccl"}
_SECONDS = 900  # for a download


def _cache():
    return os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "maypole")


def _pip(*args, seconds=_SECONDS):
    """What pip writes; None if it fails."""
    try:
        done = subprocess.run([PYTHON, "-m", "pip", "--disable-pip-version-check"] + list(args), capture_output=True,
                              text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def _newest():
    """The newest version on PyPI for this Python; without a network, the newest in the cache. None if there is neither."""
    if os.environ.get("TORCH_VERSION"):
        return os.environ["TORCH_VERSION"]
    said = re.search(r"^torch \((\S+)\)", _pip("index", "versions", "torch", seconds=60) or "", re.M)
    if said:
        return said.group(1)
    kept = [os.path.basename(path)[len("torch-"):] for path in glob.glob(os.path.join(_cache(), "torch-[0-9]*"))]
    return max(kept, key=lambda version: [int(n) for n in re.findall(r"\d+", version)], default=None)


def packages(version=None):
    """The directory with torch and what it needs; None if it is not in the cache and cannot be downloaded.

    version: None: the newest.
    """
    version = version or _newest()
    return None if version is None else _kept("torch-" + version, lambda to: _install(version, to))


def lightning():
    """The directory with the last PyTorch Lightning that has Horovod's strategy; None as above."""
    return _kept("lightning-1.9.5", lambda to: _pip(
        "install", "--no-deps", "--target", to, "pytorch-lightning==1.9.5", "torchmetrics==1.4.0",
        "lightning-utilities==0.11.9", "tqdm", "PyYAML", "packaging", "setuptools==75.8.0") is not None)


def training_libraries():
    """The directory with Lightning 2, Accelerate, Hugging Face's Transformers and torchmetrics; None as above."""
    def install(to):
        # The first want torch, which would bring CUDA's libraries; the others are what they want besides it.
        return _pip("install", "--no-deps", "--target", to, "lightning==2.6.6", "torchmetrics==1.9.0",
                    "accelerate==1.15.0") is not None and \
            _pip("install", "--target", to, "transformers==5.24.0", "lightning-utilities==0.15.3", "psutil") is not None

    return _kept("lightning-2.6.6-accelerate-1.15.0-transformers-5.24.0", install)


def deepspeed():
    """The directory with DeepSpeed, whose kernels are not compiled; None as above."""
    def install(to):
        return _pip("install", "--no-deps", "--target", to, "deepspeed==0.19.8") is not None and \
            _pip("install", "--target", to, "einops", "hjson", "msgpack", "ninja", "packaging", "psutil", "py-cpuinfo",
                 "pydantic", "tqdm") is not None

    return _kept("deepspeed-0.19.8", install)


def ucx():
    """The directory with UCX's libraries (below libucx/lib); None as above."""
    return _kept("libucx-1.18.1", lambda to: _pip(
        "install", "--no-deps", "--target", to, "libucx-cu12==1.18.1") is not None)


def ucx_environment():
    """What an agent's environment needs for that UCX."""
    return {"MAYPOLE_UCX_LIBRARY": os.path.join(ucx(), "libucx/lib/libucp.so.0")}


def _kept(name, install):
    """The directory of this name in the cache; made by install(directory) if it is not there."""
    to = os.path.join(_cache(), name)
    if os.path.isdir(to):
        return to
    os.makedirs(_cache(), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_cache()) as work:
        part = os.path.join(work, "part")
        if not install(part):
            return None
        try:
            os.rename(part, to)
        except OSError:  # another test was faster
            pass
    return to


def _install(version, to):
    if _pip("install", "--no-deps", "--target", to, "torch==" + version) is None:
        return False
    (metadata,) = glob.glob(to + "/torch-*.dist-info/METADATA")
    with open(metadata, encoding="utf-8") as f:
        needs = [line.partition(";")[0].strip() for line in re.findall(r"^Requires-Dist: (.*)$", f.read(), re.M)
                 if "extra ==" not in line]
    # Of newer versions "cuda-toolkit[cublas,...]==13.0.2; ...", of older ones "nvidia-cuda-runtime-cu12 (==12.4.127) ; ...".
    toolkit = re.search(r"^cuda-toolkit\[.*?\]==(\d+\.\d+)", "\n".join(needs), re.M)
    if toolkit:
        cuda = "nvidia-cuda-runtime==%s.*" % toolkit.group(1)
    else:
        (cuda,) = [need for need in needs if need.startswith("nvidia-cuda-runtime-")]
    pure = [need for need in needs if not _FOR_GPUS.match(need)]
    numpy = "numpy<2" if [int(n) for n in version.split(".")[:2]] < [2, 3] else "numpy"  # what it was compiled for
    runtime = os.path.join(to, "runtime")
    # Such as 2.1 import packaging, and rely on what installs packages to bring it.
    if _pip("install", "--target", to, numpy, "packaging", *pure) is None or \
            _pip("install", "--no-deps", "--target", runtime, cuda) is None:
        return False
    lib = os.path.join(to, "torch", "lib")
    for path in glob.glob(runtime + "/nvidia/**/libcudart.so.*", recursive=True):
        shutil.move(path, lib)
    shutil.rmtree(runtime)
    _stand_in(lib)
    return True


def _output(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


def _stand_in(lib):
    """Makes the libraries in place of CUDA's that those of torch in this directory ask for."""
    needed, symbols = set(), set()
    for path in glob.glob(lib + "/libc10*.so") + glob.glob(lib + "/libtorch*.so"):
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", _output("readelf", "-d", path)))
        symbols |= set(re.findall(r" U (\S+)", _output("nm", "-D", "--undefined-only", path)))
    for name in filter(_CUDA_LIBRARY.match, needed):
        first = _UNVERSIONED.get(name.partition(".")[0])
        version = None if first else "NVSHMEM" if "nvshmem" in name else name
        names = [s for s in symbols if s.startswith(first)] if first else [
            s.rpartition("@")[0] for s in symbols if s.rpartition("@")[2] == version]
        _compile(os.path.join(lib, name), names, version)


def _compile(path, names, version):
    code = "".join("int %s(void) { return 1; }\n" % name for name in sorted(names))
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", path, "-Wl,-soname," + os.path.basename(path)]
    with tempfile.NamedTemporaryFile("w") as script:
        if version:
            script.write("%s { global: *; };\n" % version)
            script.flush()
            argv.append("-Wl,--version-script=" + script.name)
        subprocess.run(argv, input=code, check=True, text=True)


def environment(directory, *more, version=None):
    """Makes a venv without pip in the directory, with torch and what functions like lightning() give; returns its Python.

    version: of torch; None: the newest.
    """
    at = [packages(version)] + [give() for give in more]
    if None in at:
        raise unittest.SkipTest("PyPI cannot be reached, and not all that is needed from there is in " + _cache())
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", directory], check=True)
    (site,) = glob.glob(directory + "/lib/python3*/site-packages")
    with open(os.path.join(site, "from_pypi.pth"), "w") as f:
        f.write("".join(path + "\n" for path in at))
    return os.path.join(directory, "bin", "python")
