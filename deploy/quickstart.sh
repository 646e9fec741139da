#!/bin/sh
# From a fresh clone to a trained model: installs the packages, builds Maypole,
# trains the example with four ranks on two nodes (both on this machine), and
# shows metrics from the middle of the run.
#   deploy/quickstart.sh [ARGUMENT ...]
#   deploy/quickstart.sh --wheel [ARGUMENT ...]
#       builds nothing, and needs neither a compiler nor root where Python has venv:
#       makes out/venv with a wheel of Maypole, which lies beside this file, in the
#       directory of the sources or that above, or in out/packages. torch is what
#       $PYTHON (python3) can import, or else comes from $TORCH_INDEX_URL (PyTorch's
#       own, for CPUs), or from Debian.
# Arguments are passed to the example, for example: deploy/quickstart.sh --epochs 1
set -eu
cd "$(dirname "$0")/.."
started="$(date +%s)"

fail() {
  echo "quickstart: $*" >&2
  exit 1
}

# Whether this user can install Debian packages.
can_install() {
  command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }
}

from_source() {
  echo "quickstart: 1 of 3: packages"
  deploy/setup.sh build run
  echo "quickstart: 2 of 3: build"
  # A clone of another user that is already built is used as it is.
  if [ -w . ] || [ ! -x out/bin/maypolerun ]; then deploy/build.sh; fi
  . deploy/env.sh
  python=/usr/bin/python3
  next=". deploy/env.sh"
}

has_torch() { "$venv/bin/python" -c "import torch" 2>/dev/null; }

from_wheel() {
  base="${PYTHON:-python3}"
  venv="$(pwd)/out/venv"
  # They would be found before the wheel.
  unset MAYPOLE_LIBRARY PYTHONPATH
  places="deploy . .. out/packages"
  found=""
  for place in $places; do
    for file in "$place"/maypole-*-manylinux_*_"$(uname -m)".whl; do
      [ ! -e "$file" ] || found="$found --find-links $place"
    done
  done
  [ -n "$found" ] || fail "there is no wheel of Maypole for $(uname -m) in any of $places of $(pwd):" \
    "deploy/make-wheel.sh makes one"

  echo "quickstart: 1 of 3: packages"
  if ! "$base" -c "import ensurepip" 2>/dev/null || [ ! -e "$data" ]; then
    # What may be missing then is looked for below.
    ! can_install || deploy/setup.sh wheel || true
  fi
  "$base" -c "import ensurepip" 2>/dev/null ||
    fail "$base cannot make a virtual environment: install Python 3.9 or newer with venv (Debian: python3-venv)," \
      "or name another one in PYTHON"

  echo "quickstart: 2 of 3: a virtual environment in out/venv"
  "$base" -m venv --system-site-packages "$venv"
  # pip takes the newest that this Python and its glibc can have.
  "$venv/bin/pip" install --no-index $found --only-binary :all: --no-deps --force-reinstall maypole ||
    fail "pip takes no wheel in any of $places, see above: they may need a newer glibc or Python"
  has_torch ||
    "$venv/bin/pip" install --retries 1 --timeout 30 torch numpy \
      --index-url "${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}" ||
    ! can_install || deploy/setup.sh run || true
  has_torch || fail "torch could not be installed, see above: install it in $venv, then try again"
  PATH="$venv/bin:$PATH"
  python="$venv/bin/python"
  next=". out/venv/bin/activate"
}

example="examples/pytorch_fashion_mnist.py"
data=/usr/share/datasets/fashion-mnist
if [ "${1:-}" = --wheel ]; then
  shift
  from_wheel
else
  from_source
fi
case " $* " in
  *" --data-dir"* | *" --synthetic "*) ;;
  *) [ -e "$data" ] || set -- --synthetic "$@" ;;
esac

work="$(mktemp -d)"
job=""
clean_up() {
  if [ -n "$job" ]; then
    kill "$job" 2>/dev/null || true
    wait "$job" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Prints up to $1 nonzero metrics of each endpoint in maypolerun's endpoints file.
sample() {
  while IFS='=' read -r name address; do
    [ "$name" = admin ] && continue  # speaks gRPC
    curl -sf --noproxy '*' --max-time 2 "http://$address/metrics" |
      grep -E '^maypole_' | grep -vE '_bucket|_build_info|_created| 0$' |
      sed "s/^/$name  /" | head -n "$1" || true
  done <"$work/endpoints"
}

echo "quickstart: 3 of 3: maypolerun -np 4 --nodes 2 $python $example $*"
maypolerun -np 4 --nodes 2 --endpoints-file "$work/endpoints" "$python" "$example" "$@" &
job=$!

# Takes a sample every second; the middle one is shown.
taken=0
while kill -0 "$job" 2>/dev/null; do
  sleep 1
  [ -s "$work/endpoints" ] || continue
  sample 5 >"$work/sample.$taken"
  [ -s "$work/sample.$taken" ] && taken=$((taken + 1))
done
status=0
wait "$job" || status=$?
job=""

if [ "$taken" -gt 0 ]; then
  echo "quickstart: from the metrics endpoints, in the middle of the run:"
  cat "$work/sample.$((taken / 2))"
fi
if [ "$status" != 0 ]; then
  echo "quickstart: the training failed with exit status $status" >&2
  exit "$status"
fi
if ! command -v curl >/dev/null; then
  echo "quickstart: without curl no metrics are shown"
elif [ "$taken" = 0 ]; then
  echo "quickstart: the run ended before metrics could be read"
fi
echo "quickstart: done after $(($(date +%s) - started)) s. Next:  $next; maypolerun --help"
