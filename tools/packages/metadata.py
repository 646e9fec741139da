"""What the packages say about themselves. The version is common/version.h's."""

import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAME = "maypole"
HOROVOD_NAME = "maypole-horovod"
MAINTAINER = "Maypole developers <maypole@example.org>"  # of packages whose builder sets no DEBEMAIL
PYTHON = ">=3.9"
TORCH = "torch>=1.13"
CLOUDPICKLE = "cloudpickle>=2"  # for functions of __main__ in maypole.run()
SPARK = ("pyspark>=3.3", "pyarrow>=8", "pandas>=1.3", CLOUDPICKLE)  # for maypole.spark
RAY = "ray>=2.9"
# Torch from 2.15 on finds the backend of torch.distributed by it, when a program asks for one of this name.
ENTRY_POINTS = "[torch.distributed.backends]\nmaypole = maypole.torch.distributed:register\n"
HOROVOD_SUMMARY = "The package horovod, for scripts that import it: Maypole under Horovod's names"
SUMMARY = "Averages gradients over all processes of a training job: Horovod's interface for PyTorch, with less waiting"

_CLASSIFIERS = (
    "Development Status :: 4 - Beta",
    "Intended Audience :: Developers",
    "Intended Audience :: Science/Research",
    "License :: OSI Approved :: Apache Software License",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: C++",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Topic :: System :: Distributed Computing",
)

_HOROVOD_TEXT = """The package `horovod` of Maypole: `import horovod.torch as hvd` gives `maypole.torch`, and `horovodrun` is `maypolerun`.

Do not install it beside Horovod itself: both have the package `horovod`, and pip lets the one overwrite the other.
"""


def read(path, root=ROOT):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def version(root=ROOT):
    return re.search(r'kVersion\[\] = "([^"]+)"', read("common/version.h", root)).group(1)


def _metadata(name, summary, more, text, root):
    head = [("Metadata-Version", "2.1"), ("Name", name), ("Version", version(root)), ("Summary", summary),
            ("License", "Apache-2.0"), ("License-File", "LICENSE")]
    head += [("Classifier", line) for line in _CLASSIFIERS]
    head += [("Requires-Python", PYTHON)] + more + [("Description-Content-Type", "text/markdown")]
    return "".join("%s: %s\n" % line for line in head) + "\n" + text


def core_metadata(root=ROOT):
    """The text of METADATA and PKG-INFO."""
    extras = [("Provides-Extra", "torch"), ("Requires-Dist", TORCH + ' ; extra == "torch"'),
              ("Provides-Extra", "run"), ("Requires-Dist", CLOUDPICKLE + ' ; extra == "run"'),
              ("Provides-Extra", "spark"), *(("Requires-Dist", name + ' ; extra == "spark"') for name in SPARK),
              ("Provides-Extra", "ray"), ("Requires-Dist", RAY + ' ; extra == "ray"'),
              ("Provides-Extra", "horovod"),
              ("Requires-Dist", '%s==%s ; extra == "horovod"' % (HOROVOD_NAME, version(root)))]
    return _metadata(NAME, SUMMARY, extras, read("README.md", root), root)


def horovod_metadata(root=ROOT):
    """The text of METADATA of the distribution with the package horovod."""
    needs = [("Requires-Dist", "%s==%s" % (NAME, version(root)))]
    return _metadata(HOROVOD_NAME, HOROVOD_SUMMARY, needs, _HOROVOD_TEXT, root)
