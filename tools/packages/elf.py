"""What programs and libraries need of a system, and which systems have it (manylinux, PEP 600).

Reads files with binutils' readelf.
"""

import os
import re
import subprocess

# The C library's, in every manylinux_2_X system.
SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libresolv.so.2",
          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
# {what readelf calls it: name in tags of wheels}
_MACHINES = {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}

# The newest glibc that a wheel may need, as third_party/portable links it: that of RHEL 8.
NEWEST_GLIBC = 28
_OLDEST_TAG = 17  # RHEL 7's


def _output(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ, LC_ALL="C")).stdout


def machine(path):
    """The processor that a file is for, as `uname -m` calls it."""
    return _MACHINES[re.search(r"Machine: +(.*)", _output("readelf", "-h", path)).group(1)]


def needed(path):
    """The names of the libraries that a file itself needs."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _output("readelf", "-d", path))


def symbol_versions(path):
    """{"GLIBC": (2, 27), ...}: the last version of each kind that a file needs."""
    last = {}
    for kind, number in re.findall(r"Name: ([A-Z]+)_([0-9.]+) ", _output("readelf", "-V", path)):
        last[kind] = max(last.get(kind, ()), tuple(map(int, number.split("."))))
    return last


def check_portable(paths):
    """Raises RuntimeError if a file needs more than the C library, or a newer one than NEWEST_GLIBC."""
    for path in paths:
        strange = sorted(set(needed(path)) - set(SYSTEM))
        strange += sorted(set(symbol_versions(path)) - {"GLIBC"})
        if strange:
            raise RuntimeError("%s needs %s, which not every system has" % (path, ", ".join(strange)))
        version = symbol_versions(path).get("GLIBC", (2, 0))
        if version > (2, NEWEST_GLIBC):
            raise RuntimeError("%s needs glibc %s: it has to run with 2.%d" %
                               (path, ".".join(map(str, version)), NEWEST_GLIBC))


def platform_tag(paths):
    """The manylinux tag of the oldest systems on which all files run, which check_portable() has checked."""
    paths = list(paths)
    (arch,) = {machine(path) for path in paths}
    glibc = max([_OLDEST_TAG] + [symbol_versions(path).get("GLIBC", (2, 0))[1] for path in paths])
    return "manylinux_2_%d_%s" % (glibc, arch)
