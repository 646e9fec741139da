#!/bin/sh
# Installs, by name, every Debian package that building, testing and running
# Maypole needs. As root, or through sudo. May be run any number of times: what
# is there already is skipped, and then nothing is downloaded.
set -eu

# To build: Bazel, compilers, and the libraries that Maypole stands on.
build="
  bazel-bootstrap g++ pkg-config git ca-certificates
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev libgloo-dev prometheus-cpp-dev libspdlog-dev libhwy-dev libssl-dev
  libcli11-dev libpmix-dev libasio-dev
"
# To test: GoogleTest, Google Benchmark; tests look at processes and networks.
# tests/bench compares with Open MPI, measures the wire, draws a picture.
# tests/start starts jobs by ssh, mpirun and Slurm; Prometheus scrapes them.
# tests/fuzz needs clang and its libFuzzer. The library is compiled for aarch64
# too, where qemu runs its tests.
test="
  libgtest-dev libgmock-dev libbenchmark-dev spin procps iproute2 util-linux
  openmpi-bin libopenmpi-dev mpich iperf3 python3-matplotlib
  openssh-client openssh-server openssl slurm-wlm munge prometheus
  clang-14 libclang-rt-14-dev
  g++-aarch64-linux-gnu qemu-user-static googletest
"
# To run the example: PyTorch and its data; curl for the metrics.
run="python3 python3-numpy python3-torch dataset-fashion-mnist curl"

fail() {
  echo "setup: $*" >&2
  exit 1
}

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  fail "this is not Debian (no apt-get). Maypole builds on Debian 12;" \
    "elsewhere install what stands for:" $build $test $run

missing=""
count=0
for package in $build $test $run; do
  count=$((count + 1))
  installed "$package" || missing="$missing $package"
done
if [ -z "$missing" ]; then
  echo "setup: all $count packages are installed"
  exit 0
fi

as_root=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null ||
    fail "not root, and there is no sudo. As root, run:" \
      "apt-get install --no-install-recommends$missing"
  as_root=sudo
fi
apt_get() {
  $as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -q -o DPkg::Lock::Timeout=300 "$@"
}

echo "setup: installing$missing"
apt_get update || fail "apt-get update failed, see above: is the network there?"
apt_get install -y --no-install-recommends $missing ||
  fail "apt-get install failed, see above"

for package in $missing; do
  installed "$package" || fail "$package is still not installed"
done
echo "setup: done, all $count packages are installed"
