"""deploy/release.sh in a small repository, whose build is a stand-in: what it makes, signs and refuses."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
import unittest.mock

import installed
import sbom
import version

SOURCES = installed.source_tree()
_WHEEL = """#!/bin/sh
processor=x86_64
case "$1" in --arch=*) processor="${1#--arch=}"; shift ;; esac
exec /usr/bin/python3 - "$1" "$processor" <<'END'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/maypole-@-py3-none-manylinux_2_28_%s.whl" % sys.argv[2], "w") as archive:
    archive.writestr("maypole-@.dist-info/licenses/libc6", "text")
    archive.writestr("maypole-@.dist-info/licenses/not-from-debian", "text")
with zipfile.ZipFile(sys.argv[1] + "/maypole_horovod-@-py3-none-any.whl", "w") as archive:
    archive.writestr("horovod/__init__.py", "")
END
"""
_DEB = """#!/bin/sh
set -e
deb="$(mktemp -d)"
mkdir -p "$deb/DEBIAN" "$deb/usr/share/doc/maypole/licenses"
echo text >"$deb/usr/share/doc/maypole/licenses/libc6"
printf 'Package: maypole\\nVersion: @-1\\nArchitecture: all\\nMaintainer: m <m@example.org>\\nDescription: d\\n' >"$deb/DEBIAN/control"
dpkg-deb --root-owner-group --build "$deb" "$1/maypole_@-1_all.deb" >/dev/null
rm -r "$deb"
"""


# What knows the versions of Debian's packages for arm64.
_ROOT = """#!/bin/sh
echo "$HOME/arm64"
"""
_STATUS = """Package: libc6
Status: install ok installed
Architecture: arm64
Maintainer: m <m@example.org>
Version: 1:2.3
Description: d

"""


class ReleaseTest(unittest.TestCase):
    def setUp(self):
        # Short, as gpg's agent has a socket there.
        self.dir = tempfile.mkdtemp(prefix="mpr", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        self.root = os.path.join(self.dir, "clone")
        self.env = {"PATH": "/usr/bin:/bin", "HOME": self.dir, "GNUPGHOME": self.dir + "/gnupg", "LC_ALL": "C.UTF-8",
                    "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@example.org",
                    "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@example.org", "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("deploy", "docs", "tools/packages"):
            shutil.copytree(os.path.join(SOURCES, name), os.path.join(self.root, name), symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__"))
        for name in (version.HEADER, version.CHANGELOG, "README.md"):
            os.makedirs(os.path.dirname(os.path.join(self.root, name)), exist_ok=True)
            shutil.copy(os.path.join(SOURCES, name), os.path.join(self.root, name))
        version.begin("7.8.9", self.root)
        for name, text in (("make-wheel.sh", _WHEEL), ("make-deb.sh", _DEB), ("build.sh", "#!/bin/sh\n"),
                           ("make-sdist.sh", '#!/bin/sh\necho sources >"$1/maypole-@.tar.gz"\n')):
            self.write("deploy/" + name, text.replace("@", "7.8.9"))
            os.chmod(os.path.join(self.root, "deploy", name), 0o755)
        for path in (self.root + "/tools/aarch64", self.dir + "/arm64/var/lib/dpkg"):
            os.makedirs(path)
        self.write("tools/aarch64/debian_root.sh", _ROOT)
        os.chmod(os.path.join(self.root, "tools/aarch64/debian_root.sh"), 0o755)
        with open(self.dir + "/arm64/var/lib/dpkg/status", "w", encoding="utf-8") as f:
            f.write(_STATUS)
        self.write(".gitignore", "/out/\n")
        version.released("2030-01-02", self.root)
        self.git("init", "--quiet")
        self.commit()

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as f:
            f.write(text)

    def run_ok(self, *argv, cwd=None):
        done = subprocess.run(argv, cwd=cwd or self.root, env=self.env, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def git(self, *arguments):
        return self.run_ok("git", *arguments)

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=m", "--date=2030-01-02T00:00:00Z")

    def make_key(self):
        """A key for this test alone; returns its name."""
        os.mkdir(self.env["GNUPGHOME"], 0o700)
        self.addCleanup(subprocess.run, ["gpgconf", "--kill", "gpg-agent"], env=self.env, check=True)
        self.run_ok("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "thrown@example.org", "ed25519")
        return "thrown@example.org"

    def refused(self, *arguments, env=None):
        """What release.sh says when it refuses; it has made nothing."""
        done = subprocess.run([self.root + "/deploy/release.sh", *arguments], env=dict(self.env, **env or {}),
                              capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertFalse(os.path.exists(self.root + "/out"))
        return done.stderr

    def test_a_release_without_a_key(self):
        said = self.run_ok("deploy/release.sh")
        self.assertIn("SHA256SUMS and the tag are not signed", said)
        self.assertTrue(said.endswith("release: 7.8.9 is in out/release/7.8.9, and the tag v7.8.9 in this clone. Next:  "
                                      "git push origin v7.8.9\n"), said)
        out = os.path.join(self.root, "out/release/7.8.9")
        made = ["maypole-7.8.9-py3-none-manylinux_2_28_aarch64.whl", "maypole-7.8.9-py3-none-manylinux_2_28_x86_64.whl",
                "maypole-7.8.9.spdx.json", "maypole-7.8.9.tar.gz", "maypole_7.8.9-1_all.deb",
                "maypole_horovod-7.8.9-py3-none-any.whl"]
        self.assertEqual(sorted(os.listdir(out)), ["SHA256SUMS", *made])
        self.assertEqual(self.run_ok("sha256sum", "--check", "SHA256SUMS", cwd=out),
                         "".join(name + ": OK\n" for name in made))
        self.assertEqual(self.git("cat-file", "-t", "v7.8.9"), "tag\n")
        self.assertEqual(self.git("rev-parse", "v7.8.9^{commit}"), self.git("rev-parse", "HEAD"))
        self.check_sbom(out)

    def check_sbom(self, out):
        with open(out + "/maypole-7.8.9.spdx.json", encoding="utf-8") as f:
            made = json.load(f)
        packages = {package["SPDXID"]: package for package in made["packages"]}
        contents = {}
        for relation in made["relationships"]:
            if relation["relationshipType"] == "CONTAINS":
                file = packages[relation["spdxElementId"]]["packageFileName"]
                contents.setdefault(file, []).append(packages[relation["relatedSpdxElement"]]["name"])
        both = ["libc6", "not-from-debian"]
        self.assertEqual(contents, {"maypole-7.8.9-py3-none-manylinux_2_28_aarch64.whl": both,
                                    "maypole-7.8.9-py3-none-manylinux_2_28_x86_64.whl": both,
                                    "maypole_7.8.9-1_all.deb": ["libc6"]})
        libc = self.run_ok("dpkg-query", "-W", "-f", "${Version}", "libc6")
        self.assertEqual(packages["SPDXRef-debian-libc6"]["versionInfo"], libc)
        arm = packages["SPDXRef-debian-arm64-libc6"]
        self.assertEqual((arm["versionInfo"], arm["externalRefs"][0]["referenceLocator"]),
                         ("1:2.3", "pkg:deb/debian/libc6@1%3A2.3?arch=arm64"))
        self.assertNotIn("versionInfo", packages["SPDXRef-debian-not-from-debian"])
        with open(out + "/SHA256SUMS", encoding="utf-8") as f:
            sums = dict(reversed(line.split()) for line in f)
        for package in packages.values():
            if "packageFileName" in package:
                self.assertEqual(package["checksums"][0]["checksumValue"], sums[package["packageFileName"]])
        commit = self.run_ok("git", "log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ").strip()
        self.assertEqual(made["creationInfo"]["created"], commit)
        os.environ["SOURCE_DATE_EPOCH"] = self.git("log", "-1", "--format=%ct").strip()
        self.addCleanup(os.environ.pop, "SOURCE_DATE_EPOCH")
        with unittest.mock.patch.dict(os.environ, HOME=self.dir):
            self.assertEqual(sbom.document(out, self.root), made)

    def test_a_release_that_is_signed(self):
        out = os.path.join(self.dir, "release")
        self.run_ok("deploy/release.sh", "--key=" + self.make_key(), out)
        self.assertIn('Good signature from "thrown@example.org"',
                      self.run_ok("gpg", "--verify", "SHA256SUMS.asc", "SHA256SUMS", cwd=out))
        self.assertIn('Good signature from "thrown@example.org"', self.git("tag", "--verify", "v7.8.9"))

    def test_what_is_not_committed(self):
        self.write("README.md", "other\n")
        self.assertIn("the files do not agree on the version", self.refused())
        self.git("checkout", "--quiet", "README.md")
        self.write("new", "")
        self.assertEqual(self.refused(), "release: there are changes that are not committed: git status\n")

    def test_a_version_that_is_released_already(self):
        self.git("tag", "v7.8.9")
        self.assertIn("release: the tag v7.8.9 exists: ", self.refused())

    def test_a_version_without_a_day(self):
        version.begin("7.8.10", self.root)
        self.commit()
        self.assertIn("release: CHANGELOG.md has 7.8.10 as unreleased: ", self.refused())

    def test_a_key_that_is_not_there(self):
        self.assertEqual(self.refused("--key=nobody"), "release: gpg has no secret key nobody\n")
        self.assertEqual(self.refused(env={"RELEASE_KEY": "nobody"}), "release: gpg has no secret key nobody\n")

    def test_without_what_is_for_aarch64(self):
        self.write("tools/aarch64/debian_root.sh", "#!/bin/sh\nexit 1\n")
        self.commit()
        self.assertEqual(self.refused(), "release: the wheel for aarch64 cannot be made, see above\n")

    def test_usage(self):
        for arguments in (["--key="], ["--sign"], ["a", "b"], [""]):
            self.assertEqual(self.refused(*arguments), "usage: release.sh [--key=KEY] [OUTDIR]\n")

    def test_a_build_that_fails_leaves_no_tag(self):
        self.write("deploy/build.sh", "#!/bin/sh\nexit 3\n")
        self.commit()
        done = subprocess.run([self.root + "/deploy/release.sh"], env=self.env, capture_output=True, check=False)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(self.git("tag", "--list"), "")


if __name__ == "__main__":
    unittest.main()
