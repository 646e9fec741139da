#!/bin/sh
# Measures the GPU facts of docs/gpu-facts.md on this machine.
#   tests/gpu/run.sh [PROBE OPTION...]         builds, bundles, runs
#   tests/gpu/run.sh --bundle [DIR]            builds and bundles into DIR only
#   tests/gpu/run.sh --from DIR [OPTION...]    runs a bundle, builds nothing: for
#                                              a machine with a GPU and no Bazel
# DIR is out/gpu if it is not given. A bundle is the probe, the plugin and the
# libraries that a machine without our packages lacks; less than 60 MiB. CUDA's
# driver is the machine's. NCCL is too: $MAYPOLE_NCCL, or what the loader, CUDA
# or the Python on PATH have. Options: see `probe --help`, as --json=FILE,
# --quick, --facts=1,3.
# Exit status: the probe's (0 all measured, 1 a failure, 3 no GPU here).
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
limit_kib=$((60 * 1024))

die() {
  echo "run.sh: $1" >&2
  exit 2
}

# What every Linux has in a version of its own that must be the loader's.
is_of_libc() {
  case "$1" in
    ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | \
      libresolv.so* | linux-vdso*) return 0 ;;
  esac
  return 1
}

# copy_libraries DIR FILE...: what the files need, into DIR/lib.
copy_libraries() {
  to="$1"
  shift
  ldd "$@" | sed -n 's/^[[:space:]]*\([^ ]*\) => \(\/[^ ]*\) .*/\1 \2/p' |
    sort -u | while read -r name path; do
    is_of_libc "$name" || cp -L "$path" "$to/lib/$name"
  done
}

# build_and_bundle DIR
build_and_bundle() {
  cd "$root"
  . tools/ci/bazel.sh
  nvcc="${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"
  [ -x "$nvcc" ] ||
    die "no nvcc at $nvcc: install CUDA's toolkit, or set CUDA_HOME"
  bazel build -c opt --config=cuda //tests/gpu/probe:probe \
    //worker/backend/gpu:libmaypole_gpu.so ||
    die "the probe was not built (see above)"
  bin="$(bazel info -c opt --config=cuda bazel-bin 2>/dev/null)"
  bundle "$1" "$bin/tests/gpu/probe/probe" \
    "$bin/worker/backend/gpu/libmaypole_gpu.so"
}

# bundle DIR PROBE PLUGIN
bundle() {
  dir="$1"
  rm -rf "$dir.new"
  mkdir -p "$dir.new/lib"
  cp -L "$2" "$dir.new/probe"
  cp -L "$3" "$dir.new/libmaypole_gpu.so"
  chmod u+w "$dir.new/probe" "$dir.new/libmaypole_gpu.so"
  strip "$dir.new/probe" "$dir.new/libmaypole_gpu.so"
  copy_libraries "$dir.new" "$dir.new/probe" "$dir.new/libmaypole_gpu.so"
  kib="$(du -sk "$dir.new" | cut -f 1)"
  [ "$kib" -le "$limit_kib" ] ||
    die "the bundle has $kib KiB, more than $limit_kib: see $dir.new"
  rm -rf "$dir"
  mv "$dir.new" "$dir"
  echo "run.sh: the bundle is in $dir ($kib KiB)"
}

# The path of libnccl.so.2, or nothing: then the plugin looks for itself.
find_nccl() {
  if [ -n "${MAYPOLE_NCCL:-}" ]; then
    echo "$MAYPOLE_NCCL"
    return
  fi
  python3 -c '
import importlib.util, os
spec = importlib.util.find_spec("nvidia")
for place in (spec.submodule_search_locations if spec else []):
    path = os.path.join(place, "nccl", "lib", "libnccl.so.2")
    if os.path.exists(path):
        print(path)
        break
' 2>/dev/null || true
}

run_bundle() {
  dir="$1"
  shift
  [ -x "$dir/probe" ] ||
    die "no bundle in $dir: make one with tests/gpu/run.sh --bundle $dir"
  nccl="$(find_nccl)"
  export LD_LIBRARY_PATH="$dir/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  exec "$dir/probe" --plugin="$dir/libmaypole_gpu.so" \
    ${nccl:+"--nccl=$nccl"} "$@"
}

absolute() {
  case "$1" in
    /*) echo "$1" ;;
    *) echo "$(pwd)/$1" ;;
  esac
}

case "${1:-}" in
  --bundle)
    build_and_bundle "$(absolute "${2:-$root/out/gpu}")"
    ;;
  --bundle-of) # PROBE PLUGIN DIR: of files that are built already
    [ $# -eq 4 ] || die "--bundle-of needs a probe, a plugin and a directory"
    bundle "$(absolute "$4")" "$2" "$3"
    ;;
  --from)
    [ $# -ge 2 ] || die "--from needs the directory of a bundle"
    dir="$(absolute "$2")"
    shift 2
    run_bundle "$dir" "$@"
    ;;
  --help | -h)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$here/run.sh"
    ;;
  *)
    build_and_bundle "$root/out/gpu"
    run_bundle "$root/out/gpu" "$@"
    ;;
esac
