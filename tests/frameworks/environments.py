"""Virtual environments with PyPI's frameworks, for tests: made once, and kept in the user's cache.

    python = environments.python("tensorflow-2.18")    # unittest.SkipTest if it cannot be made

This is the one place that names the versions that Maypole is tested with (docs/frameworks.md has what ran with each).
An environment's directory is named after its packages, so another version gets another directory.

    environments.py [NAME ...]    makes these (without names: lists all) and prints the path of each interpreter

MAYPOLE_ENVIRONMENTS=name,name limits the tests to some: the others are skipped, with a count.
"""

import fcntl
import glob
import hashlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import unittest
from typing import Dict, List, NamedTuple, Tuple, Union

import pypi_torch

_SECONDS = 1500  # for all of an environment's packages
DEBIAN = "/usr/lib/python3/dist-packages"


class Environment(NamedTuple):
    """python: the interpreter's version. requirements: as for pip. torch: whether it can import the newest torch;
    "debian": Debian's, for its Python."""

    python: str
    requirements: Tuple[str, ...]
    torch: Union[bool, str] = False


ENVIRONMENTS: Dict[str, Environment] = {
    # In the plain run.
    "tensorflow-2.18": Environment("3.11", ("tensorflow-cpu==2.18.1", "keras==3.8.0", "cloudpickle==3.1.1")),
    "jax-0.4.38": Environment("3.11", ("jax==0.4.38", "jaxlib==0.4.38", "optax==0.2.4", "cloudpickle==3.1.1")),
    # For client/python/maypole; how it is checked is in pyproject.toml.
    "standards": Environment("3.11", ("ruff==0.17.6", "mypy==2.4.1")),
    # For the SBOM of a release.
    "spdx": Environment("3.11", ("spdx-tools==0.8.5",)),
    # Grafana 10.1's schema as Python's classes.
    "grafana-schema": Environment("3.11", ("grafana-foundation-sdk==1769699998!10.1.0",)),
    # The others.
    "notebook": Environment("3.11", ("ipykernel==7.4.0", "jupyter-client==8.10.0", "nbclient==0.11.0",
                                     "cloudpickle==3.1.1")),
    "tensorboard": Environment("3.11", ("tensorboard==2.21.0", "numpy==1.24.2")),
    "tensorflow-2.8": Environment("3.10", ("tensorflow-cpu==2.8.4", "numpy==1.23.5", "protobuf==3.19.6",
                                           "cloudpickle==3.1.1")),
    "tensorflow-2.12": Environment("3.11", ("tensorflow-cpu==2.12.1", "cloudpickle==3.1.1")),
    "tensorflow-2.15": Environment("3.11", ("tensorflow-cpu==2.15.1", "cloudpickle==3.1.1")),
    "tensorflow-2.21": Environment("3.11", ("tensorflow-cpu==2.21.0", "cloudpickle==3.1.1")),
    "jax-0.10": Environment("3.11", ("jax==0.10.2", "jaxlib==0.10.2", "optax", "keras", "cloudpickle==3.1.1")),
    "keras-jax": Environment("3.11", ("jax==0.4.38", "jaxlib==0.4.38", "keras==3.8.0", "cloudpickle==3.1.1")),
    "keras-torch": Environment("3.11", ("keras", "cloudpickle==3.1.1"), torch=True),
    "spark-3.5": Environment("3.11", ("pyspark==3.5.6", "pyarrow==21.0.0", "pandas==2.3.3", "keras==3.12.0",
                                      "cloudpickle==3.1.1"),
                             torch=True),
    "spark-4.1": Environment("3.11", ("pyspark==4.1.4", "pyarrow==21.0.0", "pandas==2.3.3", "cloudpickle==3.1.1")),
    "ray-2.60": Environment("3.11", ("ray==2.60.0", "numpy==1.24.4", "cloudpickle==3.1.3"), torch="debian"),
    "mxnet-1.9": Environment("3.10", ("mxnet==1.9.1", "numpy==1.23.5", "cloudpickle==3.1.1")),
}


def names(framework: str) -> List[str]:
    """The environments of a framework ("tensorflow", "jax", ...), oldest first."""
    found = [name for name in ENVIRONMENTS if name.partition("-")[0] == framework]
    return sorted(found, key=lambda name: [int(n) for n in name.partition("-")[2].split(".") if n.isdigit()])


def python(name: str) -> str:
    """The path of the environment's interpreter; makes the environment if it is not there.

    Raises unittest.SkipTest if MAYPOLE_ENVIRONMENTS leaves it out, the interpreter is missing, or PyPI cannot be reached.
    """
    wanted = os.environ.get("MAYPOLE_ENVIRONMENTS")
    if wanted is not None and name not in wanted.split(","):
        raise unittest.SkipTest(f"MAYPOLE_ENVIRONMENTS={wanted} leaves {name} out")
    environment = ENVIRONMENTS[name]
    key = hashlib.sha256(repr(environment).encode()).hexdigest()[:10]
    cache = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "maypole")
    to = os.path.join(cache, f"{name}-{key}")
    os.makedirs(cache, exist_ok=True)
    with open(to + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test may be making it
        if not os.path.exists(os.path.join(to, "complete")):
            _make(name, environment, to)
    return os.path.join(to, "bin", "python")


def _make(name: str, environment: Environment, to: str) -> None:
    """Makes the venv in its final place, because a venv cannot be moved; the file `complete` is made last."""
    shutil.rmtree(to, ignore_errors=True)
    try:
        subprocess.run([interpreter(environment.python), "-m", "venv", "--without-pip", to], check=True,
                       capture_output=True)
        (site,) = glob.glob(to + "/lib/python3*/site-packages")
        _install(name, environment, to, site)
        if environment.torch:
            packages = DEBIAN if environment.torch == "debian" else pypi_torch.packages()
            if packages is None:
                raise unittest.SkipTest(f"{name}: torch cannot be downloaded from PyPI")
            with open(os.path.join(site, "torch.pth"), "w", encoding="utf-8") as f:
                f.write(packages + "\n")
        with open(os.path.join(to, "complete"), "w", encoding="utf-8"):
            pass
    except BaseException:
        shutil.rmtree(to, ignore_errors=True)
        raise


def _install(name: str, environment: Environment, to: str, site: str) -> None:
    # Debian's pip serves every interpreter; it writes its cache elsewhere, if at all.
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run(
            [pypi_torch.PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--python",
             os.path.join(to, "bin", "python"), "install", "--quiet", "--prefer-binary", *environment.requirements],
            env=dict(os.environ, TMPDIR=work), capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode != 0:
        raise unittest.SkipTest(f"{name}: pip could not install {environment.requirements} in {site}: "
                                f"{done.stderr.strip()[-500:]}")


def interpreter(version: str) -> str:
    """A Python of this version: the system's, one on PATH, or one of pyenv's (its shims run only the chosen version).

    Raises unittest.SkipTest if there is none.
    """
    candidates = [pypi_torch.PYTHON, shutil.which("python" + version)]
    candidates += sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")))
    for candidate in filter(None, candidates):
        said = subprocess.run([candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                              capture_output=True, text=True)
        if said.stdout.strip() == version:
            return candidate
    raise unittest.SkipTest(f"there is no Python {version} on this machine")


def main() -> None:
    if len(sys.argv) == 1:
        for name, environment in ENVIRONMENTS.items():
            print(name, environment.python, *environment.requirements)
    for name in sys.argv[1:]:
        print(python(name))


if __name__ == "__main__":
    main()
