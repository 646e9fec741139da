"""Writes what is in the packages of a release as an SBOM: SPDX 2.3, JSON.

    sbom.py DIRECTORY       describes the wheels, sdists and Debian packages there, in maypole-VERSION.spdx.json

A wheel or a Debian package that has code of other projects has their licenses, in files that are named for the Debian
packages which the code is from; so the SBOM names these, in the versions that this machine has, or, for the wheel of
another processor, those of tools/aarch64/debian_root.sh. The same files and SOURCE_DATE_EPOCH give the same bytes.
"""

import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.parse
import zipfile

import metadata

_NOTHING = "NOASSERTION"
_NAMESPACE = "https://example.org/spdx/"  # of a document's name: nothing is to be found there
_KINDS = (".whl", ".tar.gz", ".deb")


def _licenses(path):
    """The names of the files with licenses of other projects that a package has."""
    if path.endswith(".whl"):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        found = (re.search(r"\.dist-info/licenses/([^/]+)$", name) for name in names)
    elif path.endswith(".deb"):
        listed = subprocess.run(["dpkg-deb", "--contents", path], check=True, stdout=subprocess.PIPE, text=True).stdout
        found = (re.search(r"/usr/share/doc/\S+/licenses/([^/\s]+)$", line) for line in listed.splitlines())
    else:
        return []  # the sdist has sources of Maypole alone
    return sorted(match.group(1) for match in found if match)


def _architecture(path):
    """Of the Debian packages whose code a package of the release has; None: this machine's."""
    return "arm64" if path.endswith("_aarch64.whl") else None


def _said(*argv):
    """What a program writes; nothing if it fails."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _debian_version(package, architecture, root):
    """The version of a Debian package; None if it is not installed.

    architecture: as _architecture() returns it. What is not of that, such as the compiler's library, is this machine's.
    """
    ask = ["dpkg-query", "-W", "-f", "${Version}\n"]
    unpacked = _said(os.path.join(root, "tools", "aarch64", "debian_root.sh")) if architecture else ""
    found = _said(*ask, "--admindir=" + unpacked + "/var/lib/dpkg", package) if unpacked else ""
    return (found or _said(*ask, package)).partition("\n")[0] or None


def _id(name):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def _purl(locator):
    return [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}]


def _element(identifier, name, version, **more):
    return {"SPDXID": identifier, "name": name, **({"versionInfo": version} if version else {}),
            "downloadLocation": _NOTHING, "filesAnalyzed": False, "licenseConcluded": _NOTHING,
            "copyrightText": _NOTHING, **more}


def _artifact(path, version):
    """The element of a package of the release."""
    file = os.path.basename(path)
    name = re.split("[-_]%s" % re.escape(version), file)[0]
    with open(path, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    kind = "deb/" + name if file.endswith(".deb") else "pypi/" + name.replace("_", "-")
    return _element(_id(file), name, version, packageFileName=file, licenseDeclared="Apache-2.0",
                    supplier="Organization: Maypole developers",
                    checksums=[{"algorithm": "SHA256", "checksumValue": digest}],
                    externalRefs=_purl("pkg:%s@%s" % (kind, version)))


def _component_id(package, architecture):
    return _id("-".join(filter(None, ("debian", architecture, package))))


def _component(package, architecture, root):
    """The element of a Debian package whose code a package of the release has."""
    version = _debian_version(package, architecture, root)
    more = {}
    if version:
        locator = "pkg:deb/debian/%s@%s" % (package, urllib.parse.quote(version, safe="~"))
        more["externalRefs"] = _purl(locator + ("?arch=" + architecture if architecture else ""))
    return _element(_component_id(package, architecture), package, version, licenseDeclared=_NOTHING,
                    supplier="Organization: Debian",
                    licenseComments="Packages that have code of it have its license, in the file licenses/" + package, **more)


def document(directory, root=metadata.ROOT):
    """The SBOM of the packages in a directory, as what JSON can have."""
    version = metadata.version(root)
    paths = sorted(os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(_KINDS))
    artifacts = [_artifact(path, version) for path in paths]
    licenses = {path: _licenses(path) for path in paths}
    used = {(_architecture(path) or "", name) for path in paths for name in licenses[path]}
    components = [_component(name, architecture or None, root) for architecture, name in sorted(used)]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", artifact["SPDXID"]) for artifact in artifacts]
    relations += [(artifact["SPDXID"], "CONTAINS", _component_id(name, _architecture(path)))
                  for artifact, path in zip(artifacts, paths) for name in licenses[path]]
    packages = artifacts + components
    when = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), datetime.timezone.utc)
    name = "%s-%s" % (metadata.NAME, version)
    return {
        "spdxVersion": "SPDX-2.3",
        "SPDXID": "SPDXRef-DOCUMENT",
        "dataLicense": "CC0-1.0",
        "name": name,
        "documentNamespace": "%s%s-%s" % (_NAMESPACE, name, hashlib.sha256(json.dumps(packages).encode()).hexdigest()),
        "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Organization: Maypole developers", "Tool: tools/packages/sbom.py-" + version]},
        "packages": packages,
        "relationships": [{"spdxElementId": of, "relationshipType": kind, "relatedSpdxElement": to}
                          for of, kind, to in relations],
    }


def main(argv):
    if len(argv) != 1:
        sys.exit("usage: sbom.py DIRECTORY")
    made = document(argv[0])
    path = os.path.join(argv[0], made["name"] + ".spdx.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(made, f, indent=1)
        f.write("\n")
    print("%s: %d packages" % (path, len(made["packages"])))


if __name__ == "__main__":
    main(sys.argv[1:])
