#!/bin/sh
# Builds Maypole and installs the programs in out/bin, the libraries in out/lib.
# With CUDA kernels if nvcc is in $CUDA_HOME/bin (/usr/local/cuda by default);
# CUDA_HOME=none leaves them out.
# --portable, as the first argument: instead what the wheel is made of, which runs
# on older systems than this one (third_party/portable), in out/portable; or
# --portable=aarch64, that of the wheel for aarch64, in out/portable-aarch64.
# All other arguments are passed to bazel build: deploy/build.sh --config=static
set -eu
cd "$(dirname "$0")/.."
. tools/ci/bazel.sh

portable=""
bin_out=out/bin lib_out=out/lib
case "${1:-}" in
  --portable)
    portable=portable/ bin_out=out/portable lib_out=out/portable
    shift
    ;;
  --portable=aarch64)
    portable=portable/ bin_out=out/portable-aarch64 lib_out=out/portable-aarch64
    shift
    set -- --config=aarch64 "$@"
    tools/aarch64/debian_root.sh >/dev/null || exit 1
    ;;
esac
programs="coordinator:maypole-coordinator worker:maypole-worker client/launcher:maypolerun client/ctl:maypolectl"
[ -z "$portable" ] ||
  programs="tools/programs:maypole tools/programs:start-program client/launcher:portable/maypolerun"
frameworks="$(sed -n '/^FRAMEWORKS = /,/]/s/^ *"\(.*\)",$/\1/p' client/frameworks/framework_library.bzl)"
libraries=client:${portable}libmaypole.so
for framework in $frameworks; do
  libraries="$libraries client:${portable}libmaypole_$framework.so"
done

command -v bazel >/dev/null || {
  echo "build: bazel is missing: run deploy/setup.sh first" >&2
  exit 1
}
mkdir -p $bin_out $lib_out 2>/dev/null && [ -w $bin_out ] && [ -w $lib_out ] || {
  echo "build: $(pwd)/out is not writable by $(id -un): build as the owner of this clone" >&2
  exit 1
}

targets=""
for target in $programs $libraries; do
  targets="$targets //$target"
done
[ -e out/bin/maypolerun ] || echo "build: the first build here compiles all, later ones only what has changed"
# On a terminal Bazel shows what it does and how many steps are left.
if [ -t 2 ]; then
  bazel build -c opt "$@" $targets
else
  tools/ci/progress.py bazel build -c opt "$@" $targets
fi
# With other options, info would name the directory of another configuration.
info="$(bazel info -c opt "$@" bazel-bin output_base 2>/dev/null)"
bin="$(echo "$info" | sed -n 's/^bazel-bin: //p')"
base="$(echo "$info" | sed -n 's/^output_base: //p')"

# Moves the new file over the old one, so that running programs keep the old file.
install_file() {
  cmp -s "$1" "$2" && return
  cp "$1" "$2.new.$$"
  chmod "$3" "$2.new.$$"
  mv "$2.new.$$" "$2"
}
for target in $programs; do
  install_file "$bin/${target%:*}/${target#*:}" "$bin_out/$(basename "${target#*:}")" 755
done
for target in $libraries; do
  install_file "$bin/${target%:*}/${target#*:}" "$lib_out/$(basename "${target#*:}")" 644
done
[ -n "$portable" ] || for file in client/python/scripts/*; do
  install_file "$file" "out/bin/$(basename "$file")" 755
done
kernels="$(cat "$base/external/local_cuda/summary")"
case "$kernels" in
  "no "*) kernels="$kernels; tensors of ranks that share a GPU, and operations with factors, are reduced on the host" ;;
esac
echo "build: $kernels"
echo "build: programs are in $(pwd)/$bin_out, the libraries in $(pwd)/$lib_out"
