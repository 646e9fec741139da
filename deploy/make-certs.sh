#!/bin/bash
# Creates a CA for the cluster, and certificates that it signs, with openssl.
#
#   make-certs.sh DIR HOST...
#
# HOST: the names and IP addresses by which workers and maypolectl reach the
# coordinator. The files in DIR are
#   ca.pem                            for all machines
#   ca.key                            keep it away from the cluster
#   coordinator.pem, coordinator.key  for the coordinator
#   node.pem, node.key                for each machine with a maypole-worker
#   admin.pem, admin.key              for operators (maypolectl)
# If DIR already has a CA, it is used again. So you can renew certificates and
# restart the programs one machine after the other.
# MAYPOLE_CERT_DAYS: how long certificates are valid (default 825; the CA is
# valid for ten years).
set -euo pipefail
umask 077

usage() {
  echo "usage: $(basename "$0") DIR HOST...   (HOST: name or IP address of the coordinator)" >&2
  exit 2
}
fail() {
  echo "make-certs.sh: $*" >&2
  exit 1
}

[ $# -ge 2 ] || usage
command -v openssl >/dev/null || fail "openssl is not installed: apt-get install openssl"
dir=$1
shift
days=${MAYPOLE_CERT_DAYS:-825}
mkdir -p "$dir"

names=
for host in "$@"; do
  case $host in
    *[!A-Za-z0-9.:_-]* | "") fail "'$host' is not a name or IP address" ;;
    *:*) kind=IP ;;
    *[!0-9.]*) kind=DNS ;;
    *) kind=IP ;;
  esac
  names=${names:+$names,}$kind:$host
done

# Hides openssl's progress output, but shows its errors.
quietly() {
  local said
  said=$("$@" 2>&1) || fail "$* failed: $(tail -n 1 <<<"$said")"
}

if [ ! -f "$dir/ca.key" ]; then
  quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
    -subj "/CN=maypole-ca" -addext "basicConstraints=critical,CA:TRUE" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout "$dir/ca.key" -out "$dir/ca.pem"
fi

# certificate FILE COMMON-NAME USAGE [SUBJECT-ALTERNATIVE-NAMES]
certificate() {
  local file=$dir/$1
  quietly openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
    -subj "/CN=$2" -keyout "$file.key.new" -out "$file.csr"
  {
    echo "basicConstraints=critical,CA:FALSE"
    echo "keyUsage=critical,digitalSignature"
    echo "extendedKeyUsage=$3"
    [ -z "${4:-}" ] || echo "subjectAltName=$4"
  } >"$file.ext"
  quietly openssl x509 -req -in "$file.csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" \
    -set_serial "0x$(openssl rand -hex 16)" -days "$days" -extfile "$file.ext" -out "$file.pem.new"
  mv "$file.key.new" "$file.key"
  mv "$file.pem.new" "$file.pem"
  rm -f "$file.csr" "$file.ext"
}

certificate coordinator maypole-coordinator serverAuth "$names"
certificate node maypole-node clientAuth
certificate admin maypole-admin clientAuth
chmod 644 "$dir"/*.pem

cat <<END
$dir: certificates for $names, valid for $days days
  coordinator: --tls_ca=ca.pem --tls_cert=coordinator.pem --tls_key=coordinator.key
  workers:     --tls_ca=ca.pem --tls_cert=node.pem --tls_key=node.key
  maypolectl:  --tls_ca=ca.pem --tls_cert=admin.pem --tls_key=admin.key
Keep ca.key where no job and no daemon can read it.
END
