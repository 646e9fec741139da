"""Makes the wheel from built programs and sources.

In the wheel, the package maypole has
    bin/           the programs
    lib/           libmaypole.so
    lib/bundled/   the programs' libraries, except what every manylinux system has
and the environment's bin directory gets a script for each program (launch.py).
The same inputs and SOURCE_DATE_EPOCH give the same bytes.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import zipfile

import elf
import metadata

PROGRAMS = ("maypolerun", "maypolectl", "maypole-worker", "maypole-coordinator")
LIBRARY = "libmaypole.so"
_FIRST_TIME_OF_ZIP = 315532800  # 1980-01-01
_HERE = os.path.dirname(os.path.abspath(__file__))


def make_wheel(built, out, root=metadata.ROOT):
    """Writes the wheel to the directory `out`; returns its file name.

    built: {name: path} of PROGRAMS and LIBRARY.
    """
    with tempfile.TemporaryDirectory() as work:
        stripped = {name: _strip(path, os.path.join(work, name)) for name, path in built.items()}
        bundled = elf.libraries_to_bundle([stripped[name] for name in PROGRAMS])
        binaries = list(stripped.values()) + list(bundled.values())
        elf.check_complete(binaries, bundled)
        tag = "py3-none-" + elf.platform_tag(binaries)
        base = "%s-%s" % (metadata.NAME, metadata.version(root))
        name = "%s-%s.whl" % (base, tag)
        contents = _package(root)
        contents.update(_binaries(stripped, bundled))
        contents.update(_scripts(base))
        contents.update(_dist_info(base, tag, bundled, root))
        _write(os.path.join(out, name), base, contents)
    return name


def dist_info(base, tag, root=metadata.ROOT):
    """{path in the wheel: bytes} of what an installer reads first."""
    at = base + ".dist-info/"
    wheel = "Wheel-Version: 1.0\nGenerator: maypole\nRoot-Is-Purelib: false\nTag: %s\n" % tag
    return {at + "METADATA": metadata.core_metadata(root).encode(), at + "WHEEL": wheel.encode()}


def _read(path):
    with open(path, "rb") as f:
        return f.read()


def _strip(path, to):
    shutil.copyfile(path, to)
    subprocess.run(["strip", "--strip-unneeded", to], check=True)
    return to


def _package(root):
    """The Python sources, and Horovod's names, which --horovod-shim makes importable."""
    contents = {}
    top = os.path.join(root, "client", "python")
    for package, place in (("maypole", "maypole"), ("horovod_shim", "maypole/horovod_shim")):
        for at, _, names in os.walk(os.path.join(top, package)):
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(at, name)
                    inside = os.path.relpath(path, os.path.join(top, package))
                    contents["%s/%s" % (place, inside)] = _read(path)
    return contents


def _binaries(stripped, bundled):
    contents = {"maypole/bin/" + name: _read(stripped[name]) for name in PROGRAMS}
    contents["maypole/lib/" + LIBRARY] = _read(stripped[LIBRARY])
    contents.update({"maypole/lib/bundled/" + name: _read(path) for name, path in bundled.items()})
    return contents


def _scripts(base):
    launch = _read(os.path.join(_HERE, "launch.py"))
    return {"%s.data/scripts/%s" % (base, name): launch for name in PROGRAMS}


def _dist_info(base, tag, bundled, root):
    contents = dist_info(base, tag, root)
    at = base + ".dist-info/"
    contents[at + "LICENSE"] = _read(os.path.join(root, "LICENSE"))
    for package in _debian_packages(bundled.values()):
        contents["%slicenses/%s" % (at, package)] = _read("/usr/share/doc/%s/copyright" % package)
    return contents


def _debian_packages(paths):
    """The packages that these files are from: their licenses go with them."""
    # Packages may name a file as it was before /lib became a link.
    names = [name for path in paths for name in (path, path[len("/usr"):])]
    said = subprocess.run(["dpkg-query", "-S"] + names, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          check=False).stdout
    owners = {line.partition(": ")[2]: line.partition(":")[0] for line in said.splitlines()}
    for path in paths:
        if path not in owners and path[len("/usr"):] not in owners:
            raise RuntimeError("%s is not from a Debian package: its license is unknown" % path)
    return sorted(set(owners.values()))


def _write(path, base, contents):
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
