#!/bin/sh
# Prints the path of a directory with Debian's packages for arm64 of which a
# program for aarch64 is linked: unpacked, because they cannot be installed beside
# those of this machine. It lies in ~/.cache/maypole/aarch64, one for each set of
# versions that the packages of this machine have: these give the headers.
#   debian_root.sh            ends with status 1 if it is not there
#   debian_root.sh --fetch    makes it, from the mirrors that apt uses
set -eu

packages="
  libabsl-dev libc-ares-dev libevent-dev libgrpc++-dev libgrpc-dev
  libprotobuf-dev libre2-dev libssl-dev libyaml-cpp-dev zlib1g-dev
"

fail() {
  echo "debian_root: $*" >&2
  exit 1
}

here="$(dpkg-query -W -f '${Package}=${Version}\n' $packages)" ||
  fail "packages for building are missing, see above: run deploy/setup.sh build"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/maypole/aarch64"
root="$cache/$(echo "$here" | sha256sum | cut -c 1-16)"
if [ ! -d "$root" ] && [ "${1:-}" = --fetch ]; then
  mkdir -p "$cache"
  work="$(mktemp -d "$cache/new.XXXXXX")"
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/lists/partial" "$work/archives" "$work/root/var/lib/dpkg"
  # apt's own lists and cache remain as they are. root's cannot be read by the
  # user _apt.
  apt_get() {
    apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
      -o Dir::State::lists="$work/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$work" "$@"
  }
  echo "debian_root: fetching Debian's packages for arm64 (11 MB), to $root" >&2
  apt_get update >&2 || fail "apt-get update failed for arm64, see above: is the network available?"
  # A mirror has only the newest version of what had a security update.
  (cd "$work/archives" && apt_get download $here >&2 2>/dev/null) ||
    (cd "$work/archives" && rm -f -- *.deb && apt_get download $packages >&2) ||
    fail "a package for arm64 cannot be had, see above: do the sources of apt have arm64?"
  for package in "$work"/archives/*.deb; do
    dpkg-deb --extract "$package" "$work/root"
    dpkg-deb --field "$package"
    printf 'Status: install ok installed\n\n'
  done >"$work/root/var/lib/dpkg/status" # so that dpkg-query --admindir knows the versions
  mv -T "$work/root" "$root" 2>/dev/null || [ -d "$root" ] # another one was faster
fi
[ -d "$root" ] || fail "Debian's packages for arm64 are missing: run deploy/setup.sh aarch64"
echo "$root"
