"""compute-sanitizer over the tests of the kernels."""

import os
import re
import shutil

from day import Skip

_PROGRAM = "compute-sanitizer"
_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/compute-sanitizer")


def _find(day):
    if day.rehearsal:
        raise Skip("a fake driver has no code of a GPU that it could watch")
    found = shutil.which(_PROGRAM) or shutil.which(_PROGRAM, path=os.pathsep.join(_PLACES))
    if found is None:
        raise Skip("compute-sanitizer is not there")
    return found


def run(day):
    for tool in ("memcheck", "racecheck"):
        with day.check(tool) as values:
            done = day.run([_find(day), "--tool=" + tool, "--error-exitcode=9", os.path.join(day.folder, "conformance"),
                            "--gtest_filter=*Kernel*"], day.seconds_left() / (2 if tool == "memcheck" else 1),
                           expect=None)
            summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", done.stdout)
            values["summary"] = summary[-1] if summary else done.stdout[-400:]
            values["passed"] = re.findall(r"\[  PASSED  \] .*", done.stdout)
            if done.returncode != 0:
                raise AssertionError("status %d: %s" % (done.returncode, values["summary"]))
