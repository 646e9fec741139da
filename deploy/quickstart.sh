#!/bin/sh
# From a fresh clone to a trained model: installs the packages, builds Maypole,
# trains the example with four ranks on two nodes (both on this machine), and
# shows metrics from the middle of the run.
# Arguments are passed to the example, for example: deploy/quickstart.sh --epochs 1
set -eu
cd "$(dirname "$0")/.."

deploy/setup.sh
# A clone of another user that is already built is used as it is.
if [ -w . ] || [ ! -x out/bin/maypolerun ]; then deploy/build.sh; fi
. deploy/env.sh

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

example="examples/pytorch_fashion_mnist.py"
echo "quickstart: maypolerun -np 4 --nodes 2 /usr/bin/python3 $example $*"
maypolerun -np 4 --nodes 2 --endpoints-file "$work/endpoints" \
  /usr/bin/python3 "$example" "$@" &
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
[ "$taken" -gt 0 ] || echo "quickstart: the run ended before metrics could be read"
echo "quickstart: done. Next:  . deploy/env.sh; maypolerun --help"
