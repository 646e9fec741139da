"""Makes the wheel from built programs and sources.

In the wheel, the package maypole has
    bin/    the programs
    lib/    libmaypole.so, and the libraries of frameworks
and the environment's bin directory gets a script for each program (launch.py).
All of it needs nothing but the C library (//third_party/portable). The programs
that talk gRPC are one file, bin/maypole; under their names a small program starts
it. The same inputs and SOURCE_DATE_EPOCH give the same bytes.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile

import elf
import metadata

PROGRAMS = ("maypolerun", "maypolectl", "maypole-worker", "maypole-coordinator")
MULTI_CALL = "maypole"
STARTER = "start-program"
# Of PROGRAMS, those that MULTI_CALL has.
_IN_MULTI_CALL = ("maypolectl", "maypole-worker", "maypole-coordinator")
LIBRARY = "libmaypole.so"
_FRAMEWORK_LIBRARIES = os.path.join("client", "frameworks", "framework_library.bzl")
# Of these the programs have code themselves: headers, and the dashboard's script.
COMPILED_IN = ["libasio-dev", "libcli11-dev", "libhwy-dev", "libjs-chart.js", "libucx-dev", "nlohmann-json3-dev"]
# And of these, by the linker: archives, or sources (//third_party/portable).
LINKED_IN = ["libabsl-dev", "libc-ares-dev", "libc6-dev", "libevent-dev", "libfmt-dev", "libgrpc++-dev", "libgrpc-dev",
             "libprotobuf-dev", "libre2-dev", "libspdlog-dev", "libssl-dev", "libyaml-cpp-dev", "prometheus-cpp-dev",
             "zlib1g-dev"]
_PYTHON_PROGRAMS = os.path.join("client", "python", "scripts")
# {processor: how the names of its tools begin}, where it is another one than this machine's.
_CROSS = {"aarch64": "aarch64-linux-gnu-"}
_FIRST_TIME_OF_ZIP = 315532800  # 1980-01-01
_HERE = os.path.dirname(os.path.abspath(__file__))


def libraries(root=metadata.ROOT):
    """The names of all libraries: libmaypole.so, and those of frameworks."""
    text = metadata.read(_FRAMEWORK_LIBRARIES, root)
    frameworks = re.findall(r'"(\w+)"', re.search(r"^FRAMEWORKS = \[(.*?)\]", text, re.M | re.S).group(1))
    return [LIBRARY] + ["libmaypole_%s.so" % framework for framework in frameworks]


def binaries(root=metadata.ROOT):
    """{name: where deploy/build.sh --portable and Bazel put it} of what a wheel is made of."""
    paths = {name: "tools/programs/" + name for name in (MULTI_CALL, STARTER)}
    paths.update((name, "client/launcher/portable/" + name) for name in PROGRAMS if name not in _IN_MULTI_CALL)
    paths.update((name, "client/portable/" + name) for name in libraries(root))
    return paths


def make_wheel(built, out, root=metadata.ROOT):
    """Writes the wheel to the directory `out`; returns its file name.

    built: {name: path} of what binaries() names.
    """
    with tempfile.TemporaryDirectory() as work:
        stripped = {name: strip(path, os.path.join(work, name)) for name, path in built.items()}
        elf.check_portable(stripped.values())
        tag = "py3-none-" + elf.platform_tag(stripped.values())
        base = "%s-%s" % (metadata.NAME, metadata.version(root))
        name = "%s-%s.whl" % (base, tag)
        contents = python_package(root)
        contents.update(_binaries(stripped, root))
        contents.update(scripts(base, PROGRAMS))
        contents.update(_python_scripts(base, root))
        contents.update(_dist_info(base, tag, root, elf.machine(stripped[LIBRARY])))
        write(os.path.join(out, name), base, contents)
    return name


def dist_info(base, tag, text):
    """{path in the wheel: bytes} of what an installer reads first; text: METADATA."""
    at = base + ".dist-info/"
    pure = "true" if tag.endswith("-any") else "false"
    wheel = "Wheel-Version: 1.0\nGenerator: maypole\nRoot-Is-Purelib: %s\nTag: %s\n" % (pure, tag)
    return {at + "METADATA": text.encode(), at + "WHEEL": wheel.encode()}


def read(path):
    with open(path, "rb") as f:
        return f.read()


def strip(path, to):
    shutil.copyfile(path, to)
    program = _CROSS.get(elf.machine(path), "") + "strip"
    subprocess.run([program, "--strip-unneeded", "--remove-section=.comment", to], check=True)
    return to


def python_package(root):
    """The Python sources, and Horovod's names, which --horovod-shim makes importable."""
    top = os.path.join(root, "client", "python")
    contents = modules(os.path.join(top, "maypole"), "maypole")
    contents.update(modules(os.path.join(top, "horovod_shim"), "maypole/horovod_shim"))
    return contents


def modules(directory, place):
    """{path in the wheel: bytes} of the Python files, and py.typed, in a directory, which are to be at `place`."""
    contents = {}
    for at, _, names in os.walk(directory):
        for name in names:
            if name.endswith(".py") or name == "py.typed":
                path = os.path.join(at, name)
                contents["%s/%s" % (place, os.path.relpath(path, directory))] = read(path)
    return contents


def _binaries(stripped, root):
    files = {name: STARTER if name in _IN_MULTI_CALL else name for name in PROGRAMS + (MULTI_CALL,)}
    contents = {"maypole/bin/" + name: read(stripped[file]) for name, file in files.items()}
    contents.update({"maypole/lib/" + name: read(stripped[name]) for name in libraries(root)})
    return contents


def scripts(base, names):
    launch = read(os.path.join(_HERE, "launch.py"))
    return {_script(base, name): launch for name in names}


def python_programs(root=metadata.ROOT):
    """{name: text after the first line, which names the interpreter} of the programs in Python."""
    found = {}
    for name in os.listdir(os.path.join(root, _PYTHON_PROGRAMS)):
        first, _, rest = read(os.path.join(root, _PYTHON_PROGRAMS, name)).partition(b"\n")
        assert first == b"#!/usr/bin/env python3", name
        found[name] = rest
    return found


def _python_scripts(base, root):
    """The installer writes the interpreter into their first line."""
    return {_script(base, name): b"#!python\n" + rest for name, rest in python_programs(root).items()}


def _script(base, name):
    return "%s.data/scripts/%s" % (base, name)


def _dist_info(base, tag, root, machine):
    contents = dist_info(base, tag, metadata.core_metadata(root))
    at = base + ".dist-info/"
    contents[at + "LICENSE"] = read(os.path.join(root, "LICENSE"))
    contents[at + "entry_points.txt"] = metadata.ENTRY_POINTS.encode()
    for package in COMPILED_IN + LINKED_IN + _compilers_packages():
        contents["%slicenses/%s" % (at, package)] = _license(package, machine, root)
    return contents


def _license(package, machine, root):
    """The license of a package as the programs of a machine have it."""
    tops = ["/"]
    if machine in _CROSS:
        script = os.path.join(root, "tools", machine, "debian_root.sh")
        tops.insert(0, subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    (path, *_) = filter(os.path.exists, (os.path.join(top, "usr/share/doc", package, "copyright") for top in tops))
    return read(path)


def _compilers_packages():
    """The packages of the C++ library and of the compiler's own, whose names have the compiler's version.

    Debian makes its cross compilers' packages of the same sources.
    """
    version = subprocess.run(["g++", "-dumpversion"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return [name % version for name in ("libstdc++-%s-dev", "libgcc-%s-dev")]


def write(path, base, contents):
    """Writes the wheel."""
    record = base + ".dist-info/RECORD"
    lines = []
    for name in sorted(contents):
        digest = base64.urlsafe_b64encode(hashlib.sha256(contents[name]).digest()).rstrip(b"=").decode()
        lines.append("%s,sha256=%s,%d\n" % (name, digest, len(contents[name])))
    contents = dict(contents)
    contents[record] = "".join(lines + [record + ",,\n"]).encode()
    when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), _FIRST_TIME_OF_ZIP))[:6]
    # Installers want dist-info at the end, RECORD last.
    order = sorted(contents, key=lambda name: (".dist-info/" in name, name == record, name))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in order:
            info = zipfile.ZipInfo(name, when)
            info.compress_type = zipfile.ZIP_DEFLATED
            runs = name.startswith("maypole/bin/") or ".data/scripts/" in name
            info.external_attr = (0o100755 if runs else 0o100644) << 16
            archive.writestr(info, contents[name])
