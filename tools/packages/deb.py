"""Makes the Debian packages from built programs and sources.

deploy/debian/control describes the packages. Their files are
    /usr/lib/maypole/{bin,lib}                  programs and libraries; /usr/bin has links to the programs
    /usr/lib/python3/dist-packages/maypole      the Python package; its bin and lib are links to those
    /usr/lib/maypole/horovod_shim               a link into the Python package: there maypolerun looks for it
    /usr/lib/systemd/system, /etc/maypole       the services and their flags
The same inputs and SOURCE_DATE_EPOCH (default: the time of the last commit) give the same bytes.

    deb.py OUTDIR       packages what deploy/build.sh has built
"""

import email.utils
import gzip
import os
import re
import subprocess
import sys
import tempfile

import dpkg
import man
import metadata
import wheel

REVISION = "1"  # of the packages of one version
_PREFIX = "usr/lib/maypole"
_DIST_PACKAGES = "usr/lib/python3/dist-packages"
_PYTHON = "/usr/bin/python3"
_DEBIAN = os.path.join("deploy", "debian")
# Of each service: the other one, and what its upgrade says.
_SERVICES = {
    "maypole-coordinator": ("worker", "This one ends no job: systemctl restart maypole-coordinator"),
    "maypole-worker": ("coordinator", "A restart ends its jobs: maypolectl drain NODE --wait, systemctl restart "
                       "maypole-worker, maypolectl drain NODE --undo"),
}
# Maintainer scripts, of fragments in deploy/debian.
_SCRIPTS = {
    "python3-maypole": {"postinst": ["python.postinst"], "prerm": ["python.prerm"]},
    "maypole-coordinator": {"postinst": ["user.postinst", "secret.postinst", "service.postinst"],
                            "prerm": ["service.prerm"], "postrm": ["service.postrm", "secret.postrm", "user.postrm"]},
    "maypole-worker": {"postinst": ["secret.postinst", "service.postinst"], "prerm": ["service.prerm"],
                       "postrm": ["service.postrm", "secret.postrm", "runtime.postrm"]},
}


def built(root=metadata.ROOT):
    """{name: path} of what deploy/build.sh has built; ends the process if it has not."""
    out = os.path.join(root, "out")
    paths = {name: os.path.join(out, "bin", name) for name in wheel.PROGRAMS}
    paths.update({name: os.path.join(out, "lib", name) for name in wheel.libraries(root)})
    for path in paths.values():
        if not os.path.exists(path):
            sys.exit("make-deb: %s is not there: run deploy/build.sh first" % path)
    return paths


def make_debs(paths, out, root=metadata.ROOT, revision=REVISION, **how):
    """Writes the packages to the directory `out`; returns their file names.

    paths: {name: path} of wheel.PROGRAMS and wheel.libraries(). how: as for dpkg.write().
    """
    when = _time(root)
    with tempfile.TemporaryDirectory() as work:
        stripped = {name: wheel.strip(path, os.path.join(work, name)) for name, path in paths.items()}
        values = {"Version": version(root, revision), "python:Version": metadata.PYTHON.lstrip(">="),
                  "shlibs:Depends": dpkg.shared_libraries(stripped.values())}
        pages = man.pages(_commands(paths, root), when, root)
        contents = {"maypole": _programs(stripped, paths, pages, root), "python3-maypole": _python(pages, root),
                    "maypole-coordinator": _coordinator(root), "maypole-worker": _worker(root)}
    names = []
    for fields in _control(values, root):
        package = fields["Package"]
        files = dict(contents[package], **_documents(fields, when, root))
        names.append(dpkg.write(fields, files, _maintainer_scripts(package, root), when, out, **how))
    return names


def version(root=metadata.ROOT, revision=REVISION):
    return "%s-%s" % (metadata.version(root), revision)


def _maintainer():
    """Who makes the packages; the variables are those of Debian's tools."""
    mail = os.environ.get("DEBEMAIL")
    return "%s <%s>" % (os.environ.get("DEBFULLNAME", "Maypole developers"), mail) if mail else metadata.MAINTAINER


def _time(root):
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None and os.path.exists(os.path.join(root, ".git")):
        given = subprocess.run(["git", "-C", root, "log", "-1", "--format=%ct"], check=True, stdout=subprocess.PIPE,
                               text=True).stdout
    return int(given or 0)


def _commands(paths, root):
    """How to start each program, for its manual page."""
    client = os.path.join(root, "client", "python")
    python = ["env", "PYTHONPATH=" + client, "PYTHONDONTWRITEBYTECODE=1", "MAYPOLE_LIBRARY=" + paths[wheel.LIBRARY],
              _PYTHON]
    commands = {name: python + [os.path.join(client, "scripts", name)] for name in wheel.python_programs(root)}
    return {**commands, **{name: [paths[name]] for name in wheel.PROGRAMS}}


# --- The files of each package: {path: bytes or dpkg.Link} --------------------


def _programs(stripped, paths, pages, root):
    files = _manual(pages, wheel.PROGRAMS)
    for name in wheel.PROGRAMS:
        files["%s/bin/%s" % (_PREFIX, name)] = wheel.read(stripped[name])
        files["usr/bin/" + name] = dpkg.Link("../lib/maypole/bin/" + name)
        files.update(_completions(name, paths[name]))
    for name in wheel.libraries(root):
        files["%s/lib/%s" % (_PREFIX, name)] = wheel.read(stripped[name])
    for package in wheel.COMPILED_IN:
        files["usr/share/doc/maypole/licenses/" + package] = wheel.read("/usr/share/doc/%s/copyright" % package)
    return files


def _manual(pages, names):
    files = {}
    for name in names:
        section = man.SECTIONS[name]
        files["usr/share/man/man%d/%s.%d.gz" % (section, name, section)] = pages[name]
    return files


def _completions(name, path):
    bash, zsh = (subprocess.run([path, "--completion=" + shell], check=True, stdout=subprocess.PIPE).stdout
                 for shell in ("bash", "zsh"))
    # zsh calls such a file as the function of its name, so it also completes.
    start, registers, _ = zsh.rpartition(b"compdef ")
    assert registers, zsh
    function = "_" + name.replace("-", "_")
    return {"usr/share/bash-completion/completions/" + name: bash,
            "usr/share/zsh/vendor-completions/" + function: start + function.encode() + b' "$@"\n'}


def _python(pages, root):
    files = {"%s/%s" % (_DIST_PACKAGES, path): text for path, text in wheel.python_package(root).items()}
    for directory in ("bin", "lib"):
        files["%s/maypole/%s" % (_DIST_PACKAGES, directory)] = dpkg.Link("../../../maypole/" + directory)
    files[_PREFIX + "/horovod_shim"] = dpkg.Link("../python3/dist-packages/maypole/horovod_shim")
    info = "%s/%s-%s.dist-info/" % (_DIST_PACKAGES, metadata.NAME, metadata.version(root))
    files[info + "METADATA"] = metadata.core_metadata(root).encode()
    files[info + "entry_points.txt"] = metadata.ENTRY_POINTS.encode()
    files[info + "INSTALLER"] = b"dpkg\n"  # so pip does not uninstall it
    programs = wheel.python_programs(root)
    files.update({"usr/bin/" + name: b"#!%s\n%s" % (_PYTHON.encode(), rest) for name, rest in programs.items()})
    files.update(_manual(pages, programs))
    files.update(_examples("python3-maypole", [os.path.join(root, "examples", name)
                                               for name in os.listdir(os.path.join(root, "examples"))
                                               if name.endswith(".py") and not name.endswith("_test.py")]))
    return files


def _coordinator(root):
    deploy = os.path.join(root, "deploy")
    return dict(_service("coordinator", root), **_examples("maypole-coordinator", [
        deploy + "/prometheus/alerts.yml", deploy + "/prometheus/prometheus.yml", deploy + "/make-certs.sh"]))


def _worker(root):
    text = wheel.read(os.path.join(root, _DEBIAN, "needrestart.conf"))
    return dict(_service("worker", root), **{"etc/needrestart/conf.d/maypole-worker.conf": text})


def _service(daemon, root):
    unit = "maypole-%s.service" % daemon
    return {"usr/lib/systemd/system/" + unit: wheel.read(os.path.join(root, "deploy", "systemd", unit)),
            "etc/maypole/%s.conf" % daemon: wheel.read(os.path.join(root, _DEBIAN, daemon + ".conf"))}


def _examples(package, paths):
    return {"usr/share/doc/%s/examples/%s" % (package, os.path.basename(path)): wheel.read(path) for path in paths}


def _documents(fields, when, root):
    entry = ("maypole (%s) unstable; urgency=medium\n\n  * Maypole %s; changelog.gz has its changes.\n\n -- %s  %s\n" %
             (fields["Version"], metadata.version(root), fields["Maintainer"],
              email.utils.formatdate(when).replace("-0000", "+0000")))
    at = "usr/share/doc/%s/" % fields["Package"]
    return {at + "copyright": wheel.read(os.path.join(root, _DEBIAN, "copyright")),
            at + "changelog.gz": gzip.compress(metadata.read("CHANGELOG.md", root).encode(), mtime=0),
            at + "changelog.Debian.gz": gzip.compress(entry.encode(), mtime=0)}


# --- What dpkg reads ----------------------------------------------------------


def _control(values, root):
    """Yields {field: value} of each package."""
    text = re.sub(r"\$\{(.*?)\}", lambda m: values[m.group(1)], metadata.read(_DEBIAN + "/control", root))
    for stanza in text.strip().split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*(?:\n .*)*)", stanza, re.M))
        if fields["Architecture"] == "any":
            fields["Architecture"] = dpkg.architecture()
        fields["Source"] = metadata.NAME
        fields["Version"] = values["Version"]
        fields["Maintainer"] = _maintainer()
        fields["Priority"] = "optional"
        yield fields


def _maintainer_scripts(package, root):
    other, restart = _SERVICES.get(package, ("", ""))
    scripts = {}
    for script, fragments in _SCRIPTS.get(package, {}).items():
        parts = ["#!/bin/sh\nset -e\n"] + [metadata.read(os.path.join(_DEBIAN, part), root) for part in fragments]
        text = "\n".join(parts)
        for name, value in (("PACKAGE", package), ("OTHER", other), ("RESTART", restart)):
            text = text.replace("@%s@" % name, value)
        scripts[script] = text
    return scripts


def main(argv):
    if len(argv) != 1:
        sys.exit("usage: deb.py OUTDIR")
    os.makedirs(argv[0], exist_ok=True)
    for name in make_debs(built(), argv[0]):
        path = os.path.join(argv[0], name)
        print("%s: %.1f MB" % (path, os.path.getsize(path) / 1e6))


if __name__ == "__main__":
    main(sys.argv[1:])
