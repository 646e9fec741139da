"""What the packages say about themselves. The version is common/version.h's."""

import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAME = "maypole"
PYTHON = ">=3.9"
TORCH = "torch>=1.13"
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


def read(path, root=ROOT):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def version(root=ROOT):
    return re.search(r'kVersion\[\] = "([^"]+)"', read("common/version.h", root)).group(1)


def core_metadata(root=ROOT):
    """The text of METADATA and PKG-INFO."""
    head = [("Metadata-Version", "2.1"), ("Name", NAME), ("Version", version(root)), ("Summary", SUMMARY),
            ("License", "Apache-2.0"), ("License-File", "LICENSE")]
    head += [("Classifier", line) for line in _CLASSIFIERS]
    head += [("Requires-Python", PYTHON),
             ("Provides-Extra", "torch"), ("Requires-Dist", TORCH + ' ; extra == "torch"'),
             ("Description-Content-Type", "text/markdown")]
    return "".join("%s: %s\n" % line for line in head) + "\n" + read("README.md", root)
