"""The build backend that pip calls (PEP 517; pyproject.toml names it).

It needs no other package, so `pip install --no-index` of the sdist works where
Debian's packages of deploy/setup.sh are. As a program:

    backend.py wheel-x86_64 OUTDIR
    backend.py wheel-aarch64 OUTDIR     (cross-compiled)
    backend.py horovod OUTDIR     (the wheel with the package horovod)
    backend.py sdist OUTDIR
"""

import functools
import os
import re
import shutil
import subprocess
import sys

import cuda_toolkit
import horovod_wheel
import metadata
import sdist
import wheel

_TOOLS = ("bazel", "g++", "pkg-config", "protoc", "grpc_cpp_plugin", "strip", "readelf", "dpkg-query")
# Of each wheel: what deploy/build.sh is asked for, and where it puts that.
_BUILDS = {"x86_64": ("--portable", "portable"), "aarch64": ("--portable=aarch64", "portable-aarch64")}


def _check_tools():
    """Ends the process with one line if this machine cannot build."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if not missing:
        return
    packages = re.search(r'^build="([^"]*)"', metadata.read("deploy/setup.sh"), re.M).group(1)
    sys.exit("maypole: cannot build from source, because %s %s missing: install a wheel instead "
             "(deploy/make-wheel.sh makes one on another machine), or on Debian 12, as root: apt-get install %s" %
             (", ".join(missing), "is" if len(missing) == 1 else "are", " ".join(packages.split())))


def get_requires_for_build_wheel(config_settings=None):
    del config_settings
    _check_tools()
    return []


def get_requires_for_build_sdist(config_settings=None):
    del config_settings
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """So that pip need not build to learn what the wheel requires."""
    del config_settings
    name = "%s-%s.dist-info" % (metadata.NAME, metadata.version())
    os.mkdir(os.path.join(metadata_directory, name))
    for file, text in (("METADATA", metadata.core_metadata()), ("entry_points.txt", metadata.ENTRY_POINTS)):
        with open(os.path.join(metadata_directory, name, file), "w", encoding="utf-8") as f:
            f.write(text)
    return name


def _build(wheel_directory, arch):
    """Builds the programs and makes their wheel; returns its name."""
    option, place = _BUILDS[arch]
    env = dict(os.environ, CUDA_HOME=cuda_toolkit.home())
    subprocess.run([os.path.join(metadata.ROOT, "deploy", "build.sh"), option], check=True, stdout=sys.stderr, env=env)
    built = {name: os.path.join(metadata.ROOT, "out", place, name) for name in wheel.binaries()}
    return wheel.make_wheel(built, wheel_directory)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    del config_settings, metadata_directory
    _check_tools()
    name = _build(wheel_directory, "x86_64")
    if not os.path.exists(os.path.join(metadata.ROOT, ".git")):
        # pip deletes this directory; Bazel's server and its files for it would stay.
        subprocess.run(["sh", "-c", ". tools/ci/bazel.sh && exec bazel clean --expunge"], cwd=metadata.ROOT, check=True,
                       stdout=sys.stderr)
    return name


def build_sdist(sdist_directory, config_settings=None):
    del config_settings
    return sdist.make_sdist(sdist_directory)


def main(argv):
    build = {"wheel-" + arch: functools.partial(_build, arch=arch) for arch in _BUILDS}
    build.update(horovod=horovod_wheel.make_wheel, sdist=build_sdist)
    if len(argv) != 2 or argv[0] not in build:
        sys.exit("usage: backend.py %s OUTDIR" % "|".join(build))
    os.makedirs(argv[1], exist_ok=True)
    path = os.path.join(argv[1], build[argv[0]](argv[1]))
    print("%s: %.1f MB" % (path, os.path.getsize(path) / 1e6))


if __name__ == "__main__":
    main(sys.argv[1:])
