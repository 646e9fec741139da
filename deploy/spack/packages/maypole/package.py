"""Spack's package of Maypole, from its wheel: nothing is compiled, as the source builds with Debian's libraries only.

    deploy/make-wheel.sh
    spack repo add deploy/spack
    cd out/packages && spack install --no-checksum maypole      (or put the wheel into a mirror of Spack)

Checked by tests/deploy/spack_test.py, which calls it in place of Spack. Not tried with Spack itself.
"""

import glob
import os

from spack.package import *


class Maypole(PythonPackage):
    """Averages gradients over all processes of a training job, with Horovod's interface."""

    manual_download = True  # no server has the wheel: Spack takes it from this directory, or from a mirror

    maintainers("maypole")
    license("Apache-2.0")

    version("0.1.0", expand=False)

    depends_on("python@3.9:", type=("build", "run"))
    depends_on("py-pip", type="build")

    requires("platform=linux")
    requires("target=x86_64:", "target=aarch64:", policy="one_of", msg="there are wheels for x86-64 and aarch64 only")

    # The programs need nothing outside of the package but the C library: nothing is to be relocated or searched.
    import_modules = ["maypole", "maypole.common.basics"]

    def url_for_version(self, version):
        machine = "aarch64" if self.spec.satisfies("target=aarch64:") else "x86_64"
        pattern = os.path.join(os.getcwd(), f"maypole-{version}-py3-none-manylinux_*_{machine}.whl")
        return "file://" + (sorted(glob.glob(pattern)) or [pattern])[0]  # with the oldest glibc

    def setup_run_environment(self, env):
        # The framework is not one of Spack's dependencies: Maypole uses the one that is in the job's environment.
        env.prepend_path("PATH", self.prefix.bin)

    def test_programs(self):
        """The programs start."""
        for name in ("maypolerun", "maypole-coordinator"):
            which(os.path.join(self.prefix.bin, name))("--version")
