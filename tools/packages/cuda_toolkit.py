"""Finds the CUDA toolkit that compiles the kernels of a wheel.

A wheel is for GPUs that its builder does not have, so it wants code for all
architectures. The toolkit is the machine's ($CUDA_HOME, /usr/local/cuda) if it
makes code for all of them, else that of PyPI's packages (cuda_toolkit.txt), which
pip downloads once into the user's cache.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

_HERE = os.path.dirname(os.path.abspath(__file__))
_PROBE = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "third_party", "cuda", "probe.sh")
_PACKAGES = os.path.join(_HERE, "cuda_toolkit.txt")
_DOWNLOAD_S = 600


class NotFound(Exception):
    """Why there is no toolkit of PyPI."""


def probe(home):
    """What the toolkit in `home` can make: (the architectures of its code, the summary in words)."""
    said = subprocess.run([_PROBE, home], check=True, stdout=subprocess.PIPE, text=True).stdout
    architectures, summary = said.rstrip("\n").split("\n")
    return architectures.split(), summary


def cache_directory():
    """Where PyPI's toolkit is, or will be; another one for other packages."""
    with open(_PACKAGES, "rb") as f:
        version = hashlib.sha256(b"".join(line for line in f if not line.startswith(b"#"))).hexdigest()[:12]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "maypole", "cuda-" + version)


def home(environ=None):
    """CUDA_HOME for the build of a wheel; a line on standard error says why it is not the machine's, or not complete."""
    environ = os.environ if environ is None else environ
    own = environ.get("CUDA_HOME") or "/usr/local/cuda"
    if own == "none":
        return own
    architectures, summary = probe(own)
    wanted = wanted_architectures()
    if architectures == wanted:
        return own
    try:
        found = pypi()
    except NotFound as e:
        print("maypole: the wheel %s, because nvcc of PyPI cannot be had (%s), and the toolkit here makes %s" %
              ("has fewer kernels than others" if architectures else "is built without kernels", e, summary),
              file=sys.stderr)
        return own
    print("maypole: the wheel's kernels are compiled by nvcc of PyPI, because the toolkit here makes %s" % summary,
          file=sys.stderr)
    return found


def wanted_architectures():
    """All that a wheel has code for."""
    with open(_PROBE, encoding="utf-8") as f:
        (line,) = [line for line in f if line.startswith("wanted=")]
    return line.split('"')[1].split()


def pypi():
    """The home of PyPI's toolkit, downloaded if the cache does not have it; raises NotFound."""
    directory = cache_directory()
    if not os.path.exists(directory):
        try:
            os.makedirs(os.path.dirname(directory), exist_ok=True)
            with tempfile.TemporaryDirectory(dir=os.path.dirname(directory)) as work:
                _download(os.path.join(work, "wheels"))
                _unpack(os.path.join(work, "wheels"), os.path.join(work, "toolkit"))
                os.rename(os.path.join(work, "toolkit"), directory)
        except OSError as e:
            if not os.path.exists(directory):  # else another build was faster
                raise NotFound(e) from e
    return os.path.join(directory, "nvidia", "cu13")


def _download(to):
    python = _python_with_pip()
    pip = [python, "-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes",
           "--only-binary=:all:", "--retries", "1", "--dest", to, "--requirement", _PACKAGES]
    try:
        done = subprocess.run(pip, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=_DOWNLOAD_S,
                              check=False)
    except subprocess.TimeoutExpired:
        raise NotFound("pip has not downloaded it within %d s" % _DOWNLOAD_S) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NotFound("pip: " + (lines[-1] if lines else "status %d" % done.returncode))


def _python_with_pip():
    """-I: the environment in which pip builds hides pip from its own Python."""
    for python in (sys.executable, "/usr/bin/python3", shutil.which("python3")):
        if python and subprocess.run([python, "-I", "-m", "pip", "--version"], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return python
    raise NotFound("no Python here has pip")


def _unpack(wheels, to):
    for path in glob.glob(os.path.join(wheels, "*.whl")):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(to)
    own = os.path.join(to, "nvidia", "cu13")
    os.replace(os.path.join(to, "nvidia", "cuda_nvcc", "bin", "ptxas"), os.path.join(own, "bin", "ptxas"))
    for directory in (os.path.join(own, "bin"), os.path.join(own, "nvvm", "bin")):
        for path in glob.glob(os.path.join(directory, "*")):
            os.chmod(path, 0o755)
