"""Which libraries programs need, and which systems have them (manylinux, PEP 600).

Reads files with binutils' readelf and the loader's ldd.
"""

import os
import re
import subprocess

# What every manylinux_2_X system has, of what we may need.
_SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libresolv.so.2",
           "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "linux-vdso.so.1")

# The last versions of GCC's symbols that systems with this glibc have
# (manylinux's policies for x86-64).
_GCC_SYMBOLS = {
    34: {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)},
    35: {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
}


def _output(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ, LC_ALL="C")).stdout


def needed(path):
    """The names of the libraries that a file itself needs."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _output("readelf", "-d", path))


def symbol_versions(path):
    """{"GLIBC": (2, 34), ...}: the last version of each kind that a file needs."""
    last = {}
    for kind, number in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+) ", _output("readelf", "-V", path)):
        last[kind] = max(last.get(kind, ()), tuple(map(int, number.split("."))))
    return last


def libraries_to_bundle(paths):
    """{name: path here} of all libraries that files need and systems need not have."""
    found = {}
    for path in paths:
        for name, at in re.findall(r"^\s*(\S+) => (.*?)(?: \(0x[0-9a-f]+\))?$", _output("ldd", path), re.M):
            if name in _SYSTEM:
                continue
            if at == "not found":
                raise RuntimeError("%s needs %s, which is not on this system" % (path, name))
            found[name] = os.path.realpath(at)
    return found


def check_complete(paths, names):
    """Raises RuntimeError if a file needs a library that is neither in `names` nor on every system."""
    for path in paths:
        strange = sorted(set(needed(path)) - set(names) - set(_SYSTEM))
        if strange:
            raise RuntimeError("%s needs %s, which is neither in the wheel nor on every system" %
                               (path, ", ".join(strange)))


def platform_tag(paths):
    """The manylinux tag of the oldest systems on which all files run."""
    glibc = min(_GCC_SYMBOLS)
    for path in paths:
        versions = symbol_versions(path)
        glibc = max(glibc, versions.pop("GLIBC", (2, 0))[1])
        for kind, number in versions.items():
            enough = [g for g, last in _GCC_SYMBOLS.items() if number <= last[kind]]
            if not enough:
                raise RuntimeError("%s needs %s_%s: newer than the systems that this script knows" %
                                   (path, kind, ".".join(map(str, number))))
            glibc = max(glibc, min(enough))
    return "manylinux_2_%d_x86_64" % glibc
