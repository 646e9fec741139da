#!/bin/sh
# Installs the Debian packages that are needed for Maypole, as root or through
# sudo. You can run it any number of times: it skips installed packages, and
# downloads nothing if all are installed.
#   deploy/setup.sh                                   to build, run and test it
#   deploy/setup.sh build|run|test|wheel|aarch64 ...  for these purposes only
set -eu

# The release's clang: Debian 12 has 14, Debian 13 has 19.
clang=14
if grep -q '^VERSION_CODENAME=trixie$' /etc/os-release 2>/dev/null; then clang=19; fi

# To build (deploy/build.sh): Bazel, compilers, and the libraries that Maypole
# uses. Nothing that only tests need: third_party/system declares those libraries
# too, and Bazel looks for one when a target that depends on it is built. A third
# of the size is the JDK, on which bazel-bootstrap depends.
build="
  bazel-bootstrap g++ pkg-config
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev prometheus-cpp-dev libspdlog-dev libhwy-dev libssl-dev
  libcli11-dev libpmix-dev libasio-dev libyaml-cpp-dev libevent-dev
  nlohmann-json3-dev libjs-chart.js libucx-dev
"
# To test: GoogleTest, Google Benchmark, and tools to examine processes and
# networks. tests/bench compares with Open MPI and Gloo, measures the network and plots.
# tests/start starts jobs with ssh, mpirun and Slurm; Prometheus scrapes them.
# tests/fuzz needs clang and its libFuzzer. The library is also compiled for
# aarch64, and qemu runs its tests. tests/availability starts members of etcd.
# tests/monitoring looks at the dashboard with Chromium. tests/packages makes
# Debian packages, with manual pages, installs them and the wheel in clean root
# directories of Debian, and signs a release; git knows what belongs to the
# sources.
test="
  git gpg gpg-agent ca-certificates procps iproute2 util-linux
  libgtest-dev libgmock-dev libbenchmark-dev spin libgloo-dev
  openmpi-bin libopenmpi-dev mpich iperf3 python3-matplotlib
  openssh-client openssh-server openssl slurm-wlm munge prometheus
  clang-$clang libclang-rt-$clang-dev
  g++-aarch64-linux-gnu qemu-user-static googletest python3-venv python3-pip
  etcd-server etcd-client chromium chromium-driver dpkg-dev help2man man-db
  mmdebstrap systemd-container
"
# To run the example: PyTorch and its data; curl for the metrics. cloudpickle for
# maypole.run.
run="python3 python3-numpy python3-torch python3-cloudpickle dataset-fashion-mnist curl"
# To run the example with a wheel (deploy/quickstart.sh --wheel), which brings its
# own libraries: pip installs the rest.
wheel="python3-venv ca-certificates dataset-fashion-mnist curl"
# To build for aarch64 (deploy/make-wheel.sh --arch=aarch64), too. Debian's packages
# for arm64 are unpacked in the user's cache (tools/aarch64/debian_root.sh).
aarch64="$build g++-aarch64-linux-gnu"

fail() {
  echo "setup: $*" >&2
  exit 1
}

[ $# -gt 0 ] || set -- build run test
wanted=""
for group in "$@"; do
  case "$group" in
    build) wanted="$wanted $build" ;;
    run) wanted="$wanted $run" ;;
    test) wanted="$wanted $test" ;;
    wheel) wanted="$wanted $wheel" ;;
    aarch64) wanted="$wanted $aarch64" ;;
    *)
      echo "usage: setup.sh [build] [run] [test] [wheel] [aarch64]" >&2
      exit 2
      ;;
  esac
done

# What is not installed, but unpacked.
unpack() {
  case " $* " in
    *" aarch64 "*)
      root="$("$(dirname "$0")/../tools/aarch64/debian_root.sh" --fetch)" ||
        fail "Debian's packages for arm64 cannot be unpacked, see above"
      echo "setup: Debian's packages for arm64 are in $root"
      ;;
  esac
}

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  fail "this is not Debian (no apt-get). Maypole builds on Debian 12;" \
    "on other systems install the equivalent of:" $wanted

missing=""
seen=""
count=0
for package in $wanted; do
  case " $seen" in *" $package "*) continue ;; esac
  seen="$seen$package "
  count=$((count + 1))
  installed "$package" || missing="$missing $package"
done
if [ -z "$missing" ]; then
  unpack "$@"
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
apt_get update || fail "apt-get update failed, see above: is the network available?"
apt_get install -y --no-install-recommends $missing ||
  fail "apt-get install failed, see above"

for package in $missing; do
  installed "$package" || fail "$package is still not installed"
done
# The tests start members of etcd themselves; a new package starts one as a
# service.
case "$missing" in
  *etcd-server*)
    [ ! -d /run/systemd/system ] || $as_root systemctl disable --now etcd ||
      echo "setup: etcd.service could not be stopped; no test needs it" >&2
    ;;
esac
unpack "$@"
echo "setup: done, all $count packages are installed"
