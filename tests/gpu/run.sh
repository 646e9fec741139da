#!/bin/sh
# Measures the GPU facts of docs/gpu-facts.md on this machine.
#   tests/gpu/run.sh [PROBE OPTION...]         builds, bundles, runs
#   tests/gpu/run.sh --bundle [DIR]            builds and bundles into DIR only
#   tests/gpu/run.sh --from DIR [OPTION...]    runs a bundle, builds nothing: for
#                                              a machine with a GPU and no Bazel
#   tests/gpu/run.sh --check DIR               first the plugin's own tests, each
#                                              in a process with a time limit
# DIR is out/gpu if it is not given. A bundle is the probe, the plugin, its test
# and the libraries that a machine without our packages lacks; less than 60 MiB. The
# machine provides CUDA's driver, and NCCL: $MAYPOLE_NCCL, or the one that the loader,
# CUDA or the Python on PATH has. Options: see `probe --help`, as --json=FILE,
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

# Libraries that must come from the machine, because they must match its loader.
is_of_libc() {
  case "$1" in
    ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | \
      libresolv.so* | linux-vdso*) return 0 ;;
  esac
  return 1
}

# copy_libraries DIR FILE...: copies the libraries that the files need to DIR/lib.
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
    //worker/backend/gpu:libmaypole_gpu.so \
    //worker/backend/gpu:plugin_gpu_test ||
    die "the probe was not built (see above)"
  bin="$(bazel info -c opt --config=cuda bazel-bin 2>/dev/null)"
  bundle "$1" "$bin/tests/gpu/probe/probe" \
    "$bin/worker/backend/gpu/libmaypole_gpu.so" \
    "$bin/worker/backend/gpu/plugin_gpu_test"
}

# bundle DIR PROBE PLUGIN TEST
bundle() {
  dir="$1"
  rm -rf "$dir.new"
  mkdir -p "$dir.new/lib"
  cp -L "$2" "$dir.new/probe"
  cp -L "$3" "$dir.new/libmaypole_gpu.so"
  cp -L "$4" "$dir.new/plugin_gpu_test"
  chmod u+w "$dir.new/probe" "$dir.new/libmaypole_gpu.so" \
    "$dir.new/plugin_gpu_test"
  # Bazel links a test to libraries of ours in its tree: found, and copied.
  copy_libraries "$dir.new" "$2" "$3" "$4"
  strip "$dir.new/probe" "$dir.new/libmaypole_gpu.so" \
    "$dir.new/plugin_gpu_test"
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

# enter_bundle DIR: with its libraries, and NCCL if there is one.
enter_bundle() {
  [ -x "$1/probe" ] ||
    die "no bundle in $1: make one with tests/gpu/run.sh --bundle $1"
  nccl="$(find_nccl)"
  export LD_LIBRARY_PATH="$1/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  # Where containers have the driver's programs.
  PATH="$PATH:/usr/local/nvidia/bin"
  # While somebody has the device open the driver does not put it to sleep
  # between one process and the next.
  [ ! -r /dev/nvidia0 ] || exec 9</dev/nvidia0
}

# Each test runs in its own process: a test that hangs would make all later tests in
# its process wait for the device.
check_bundle() {
  dir="$1"
  enter_bundle "$dir"
  export MAYPOLE_GPU_PLUGIN="$dir/libmaypole_gpu.so"
  [ -z "$nccl" ] || export MAYPOLE_NCCL="$nccl"
  failed=0
  for name in $("$dir/plugin_gpu_test" --gtest_list_tests | grep '^  '); do
    timeout -k 5 60 "$dir/plugin_gpu_test" --gtest_brief=1 \
      --gtest_filter="PluginGpuTest.$name" && continue
    echo "run.sh: $name: status $?" >&2
    failed=$((failed + 1))
  done
  echo "run.sh: $failed of the plugin's tests failed"
  [ "$failed" = 0 ]
}

run_bundle() {
  dir="$1"
  shift
  enter_bundle "$dir"
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
  --bundle-of) # PROBE PLUGIN TEST DIR: of files that are built already
    [ $# -eq 5 ] ||
      die "--bundle-of needs a probe, a plugin, its test and a directory"
    bundle "$(absolute "$5")" "$2" "$3" "$4"
    ;;
  --check)
    check_bundle "$(absolute "${2:-$root/out/gpu}")"
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
