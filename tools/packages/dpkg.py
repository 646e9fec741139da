"""Writes a .deb of files in memory, with Debian's tools."""

import hashlib
import os
import re
import subprocess
import tempfile


class Link(str):
    """Among a package's files: a symbolic link to this path."""


def write(fields, files, scripts, when, out, level=6):
    """Writes a package to the directory `out`; returns its file name. The same arguments give the same bytes.

    fields: {field: value} of its control file, without Installed-Size; Description last. files: {path without the
    first slash: bytes or Link}; those in etc are its conffiles, those in a bin directory programs. scripts: {name:
    text} of maintainer scripts. when: the time of all files, in seconds since 1970. level: xz's, 0 (fast) to 9.
    """
    name = "%s_%s_%s.deb" % (fields["Package"], fields["Version"], fields["Architecture"])
    with tempfile.TemporaryDirectory() as tree:
        os.chmod(tree, 0o755)
        for path, what in files.items():
            _put(tree, path, what, runs=re.search(r"/bin/|\.sh$", path) is not None)
        fields = dict(fields)
        description = fields.pop("Description")
        fields.update({"Installed-Size": _kilobytes(files), "Description": description})
        _put(tree, "DEBIAN/control", "".join("%s: %s\n" % field for field in fields.items()).encode())
        sums = ["%s  %s\n" % (hashlib.md5(files[path]).hexdigest(), path) for path in sorted(files)
                if not isinstance(files[path], Link)]
        _put(tree, "DEBIAN/md5sums", "".join(sums).encode())
        conffiles = ["/%s\n" % path for path in sorted(files) if path.startswith("etc/")]
        if conffiles:
            _put(tree, "DEBIAN/conffiles", "".join(conffiles).encode())
        for script, text in scripts.items():
            _put(tree, "DEBIAN/" + script, text.encode(), runs=True)
        # More threads would compress to other bytes.
        build = ["dpkg-deb", "--root-owner-group", "--threads-max=1", "-z%d" % level, "--build"]
        subprocess.run(build + [tree, os.path.join(out, name)], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, SOURCE_DATE_EPOCH=str(when)))
    return name


def shared_libraries(paths):
    """The value of Depends for files: the packages of their libraries, from the versions on that have their symbols."""
    with tempfile.TemporaryDirectory() as work:
        _put(work, "debian/control", b"Source: maypole\n\nPackage: maypole\nArchitecture: any\n")
        # It warns of files outside of a package's tree, once for each of their libraries.
        done = subprocess.run(["dpkg-shlibdeps", "-O"] + list(paths), cwd=work, check=False, capture_output=True,
                              text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return re.fullmatch(r"shlibs:Depends=(.+)\n", done.stdout).group(1)


def architecture():
    """This machine's, as Debian names it."""
    said = subprocess.run(["dpkg", "--print-architecture"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return said.strip()


def _put(tree, path, what, runs=False):
    at = os.path.join(tree, path)
    parent = os.path.dirname(at)
    missing = []
    while not os.path.isdir(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    for directory in reversed(missing):
        os.mkdir(directory)
        os.chmod(directory, 0o755)  # whatever the umask is
    if isinstance(what, Link):
        os.symlink(what, at)
        return
    with open(at, "wb") as f:
        f.write(what)
    os.chmod(at, 0o755 if runs else 0o644)


def _kilobytes(files):
    """As dpkg counts: each file, link and directory takes at least one."""
    directories = set()
    for path in files:
        while path:
            path = os.path.dirname(path)
            directories.add(path)
    return len(directories) + sum(1 if isinstance(what, Link) else -(-len(what) // 1024) for what in files.values())
