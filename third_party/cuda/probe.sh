#!/bin/sh
# Says which kernels the CUDA toolkit in HOME can make, in two lines: the
# architectures for which it makes code (empty: no kernels), and a sentence.
#   probe.sh HOME       (none: no toolkit)
# Every architecture from 7.0 on also gets PTX, which the driver compiles: see
# tools/build_defs/cuda.bzl.
set -eu
wanted="70 75 80 86 89 90 100 120"
home="$1"

none() {
  echo
  echo "no CUDA kernels: $1"
  exit 0
}

[ "$home" != none ] || none "CUDA_HOME=none"
[ -x "$home/bin/nvcc" ] || none "there is no nvcc in $home/bin (CUDA_HOME)"
version="$("$home/bin/nvcc" --version | sed -n 's/^.*release \([0-9]*\.[0-9]*\).*$/\1/p')"
[ "${version%%.*}" -ge 12 ] 2>/dev/null || none "nvcc ${version:-of unknown version} in $home/bin is older than 12.0"

# It assembles an empty program for those that it knows.
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
printf '.version 8.0\n.target sm_70\n.address_size 64\n' >"$work/empty.ptx"
made="" missing=""
for arch in $wanted; do
  if "$home/bin/ptxas" -arch="sm_$arch" "$work/empty.ptx" -o "$work/empty.cubin" >/dev/null 2>&1; then
    made="$made $arch"
  else
    missing="$missing sm_$arch"
  fi
done
[ -n "$made" ] || none "$home/bin/ptxas does not work"
echo "${made# }"
said="CUDA kernels for$(printf ' sm_%s' $made), by nvcc $version of $home"
echo "$said${missing:+; for$missing as PTX only, because this toolkit does not know it}"
