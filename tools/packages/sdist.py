"""Makes the source distribution: all that Bazel builds the wheel from.

The same inputs and SOURCE_DATE_EPOCH give the same bytes.
"""

import gzip
import io
import os
import subprocess
import tarfile

import metadata

# Tests' recorded inputs are half of the repository, and build nothing.
_LEFT_OUT = ("tests/fuzz/corpus/",)
_NOT_SOURCES = ("out", "__pycache__")


def sources(root=metadata.ROOT):
    """The paths of the files, relative to root: what git knows, or all of an unpacked sdist."""
    if os.path.exists(os.path.join(root, ".git")):
        said = subprocess.run(["git", "-C", root, "ls-files", "-z"], check=True, stdout=subprocess.PIPE).stdout
        paths = [path for path in said.decode().split("\0") if path and os.path.exists(os.path.join(root, path))]
    else:
        paths = []
        for at, directories, names in os.walk(root):
            directories[:] = [d for d in directories if d not in _NOT_SOURCES and not d.startswith("bazel-")]
            paths += [os.path.relpath(os.path.join(at, name), root) for name in names]
    return sorted(path for path in paths if not path.startswith(_LEFT_OUT) and path != "PKG-INFO")


def make_sdist(out, root=metadata.ROOT):
    """Writes the .tar.gz to the directory `out`; returns its file name."""
    base = "%s-%s" % (metadata.NAME, metadata.version(root))
    when = int(os.environ.get("SOURCE_DATE_EPOCH", 0))
    name = base + ".tar.gz"
    with open(os.path.join(out, name), "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=when) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sources(root):
            _add(archive, base, path, when, os.path.join(root, path))
        text = metadata.core_metadata(root).encode()
        info = tarfile.TarInfo(base + "/PKG-INFO")
        info.size, info.mtime, info.mode = len(text), when, 0o644
        archive.addfile(info, io.BytesIO(text))
    return name


def _add(archive, base, path, when, at):
    info = tarfile.TarInfo(base + "/" + path)
    info.mtime = when
    if os.path.islink(at):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(at)
        archive.addfile(info)
        return
    info.size = os.path.getsize(at)
    info.mode = 0o755 if os.access(at, os.X_OK) else 0o644
    with open(at, "rb") as f:
        archive.addfile(info, f)
