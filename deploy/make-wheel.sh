#!/bin/sh
# Builds Maypole and makes its wheels in OUTDIR (default: out/packages): maypole,
# and maypole-horovod, which pip install maypole[horovod] adds.
# maypole runs on systems with glibc 2.28 or newer (docs/install.md).
# It has CUDA kernels for all architectures: nvcc is that of $CUDA_HOME
# (/usr/local/cuda), or of PyPI (tools/packages/cuda_toolkit.py). CUDA_HOME=none
# leaves them out.
# --arch=aarch64: maypole for that processor instead, cross-compiled on x86-64, with
# the same kernels. It needs deploy/setup.sh aarch64; maypole-horovod is for all
# processors.
#   deploy/make-wheel.sh [--arch=x86_64|aarch64] [OUTDIR]
set -eu
root="$(cd "$(dirname "$0")/.." && pwd)"
arch=x86_64
case "${1:-}" in
  --arch=x86_64 | --arch=aarch64)
    arch="${1#--arch=}"
    shift
    ;;
esac
case "$#${1:-}" in
  0 | 1[!-]*) ;;
  *)
    echo "usage: make-wheel.sh [--arch=x86_64|aarch64] [OUTDIR]" >&2
    exit 2
    ;;
esac
out="${1:-$root/out/packages}"
/usr/bin/python3 "$root/tools/packages/backend.py" "wheel-$arch" "$out"
/usr/bin/python3 "$root/tools/packages/backend.py" horovod "$out"
