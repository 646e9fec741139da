#!/bin/sh
# Builds Maypole and makes its wheels in OUTDIR (default: out/packages): maypole,
# and maypole-horovod, which pip install maypole[horovod] adds.
# maypole runs on systems with glibc 2.28 or newer (docs/install.md).
# It has CUDA kernels for all architectures: nvcc is that of $CUDA_HOME
# (/usr/local/cuda), or of PyPI (tools/packages/cuda_toolkit.py). CUDA_HOME=none
# leaves them out.
#   deploy/make-wheel.sh [OUTDIR]
set -eu
root="$(cd "$(dirname "$0")/.." && pwd)"
out="${1:-$root/out/packages}"
/usr/bin/python3 "$root/tools/packages/backend.py" wheel "$out"
/usr/bin/python3 "$root/tools/packages/backend.py" horovod "$out"
