#!/bin/sh
# Renders the chart deploy/helm/maypole into the files beside this script, for
# those who do not use Helm. Needs helm (3.8 or newer, or $HELM).
#   deploy/kubernetes/render.sh [OUTDIR]
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
out="${1:-$here}"

# render FILE TEMPLATE [VALUES]
render() {
  {
    echo "# Rendered from deploy/helm/maypole by deploy/kubernetes/render.sh${3:+, with $3}."
    "${HELM:-helm}" template maypole "$here/../helm/maypole" --show-only "templates/$2" ${3:+--set "$3"}
  } >"$out/$1"
}
render coordinator.yaml coordinator.yaml
render agents.yaml agents.yaml
elect="coordinator.replicas=3,coordinator.etcd={etcd:2379}"
render coordinator-etcd.yaml coordinator.yaml "$elect"
render agents-etcd.yaml agents.yaml "$elect"
render networkpolicy.yaml networkpolicy.yaml
render job.yaml job.yaml job.enabled=true
render job-sidecar.yaml job.yaml job.enabled=true,job.sidecar=true
