#!/bin/sh
# Prints the path of a Debian source archive, which lies in ~/.cache/maypole/sources
# or is fetched from the mirror that has this version of a binary package of it.
#   fetch_source.sh PACKAGE ARCHIVE SHA256
set -eu
package=$1 archive=$2 sha256=$3
directory="${XDG_CACHE_HOME:-$HOME/.cache}/maypole/sources"
path="$directory/$archive"
if ! echo "$sha256  $path" | sha256sum --check --status 2>/dev/null; then
  mkdir -p "$directory"
  uri="$(cd / && apt-get download --print-uris "$package" | sed -n "s/^'\(.*\)' .*/\1/p")"
  new="$path.new.$$"
  /usr/lib/apt/apt-helper download-file "${uri%/*}/$archive" "$new" "SHA256:$sha256" >&2 || {
    rm -f "$new"
    echo "cannot fetch $archive, the source of $package: is Debian's mirror reachable, and has apt-get update run?" >&2
    exit 1
  }
  mv "$new" "$path"
fi
echo "$path"
