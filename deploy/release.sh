#!/bin/sh
# Makes a release of what is committed, in OUTDIR (default: out/release/VERSION):
# the wheels (also for aarch64), the sdist, the Debian packages, an SBOM (SPDX), and SHA256SUMS of all;
# then the tag vVERSION in this clone. With a key of GPG, the tag and SHA256SUMS
# (SHA256SUMS.asc) are signed. docs/releasing.md has what is done before and after.
#   deploy/release.sh [--key=KEY] [OUTDIR]
# KEY is as for gpg --local-user; its default is $RELEASE_KEY.
set -eu
cd "$(dirname "$0")/.."

fail() {
  echo "release: $*" >&2
  exit 1
}

key="${RELEASE_KEY:-}"
out=""
for argument in "$@"; do
  case "$argument" in
    --key=?*) key="${argument#--key=}" ;;
    -* | "") out=usage && break ;;
    *) [ -z "$out" ] && out="$argument" || out=usage ;;
  esac
done
[ "$out" != usage ] || {
  echo "usage: release.sh [--key=KEY] [OUTDIR]" >&2
  exit 2
}

# --- What has to be right before anything is built ------------------------------
version="$(tools/packages/version.py)" || fail "the files do not agree on the version, see above"
tag="v$version"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed: git status"
! git rev-parse -q --verify "refs/tags/$tag" >/dev/null ||
  fail "the tag $tag exists: tools/packages/version.py NEW begins another version"
! grep -q "^## \[$version\] - unreleased" CHANGELOG.md ||
  fail "CHANGELOG.md has $version as unreleased: run tools/packages/version.py --released, and commit"
[ -z "$key" ] || gpg --batch --list-secret-keys "$key" >/dev/null 2>&1 || fail "gpg has no secret key $key"
tools/aarch64/debian_root.sh >/dev/null || fail "the wheel for aarch64 cannot be made, see above"
out="${out:-out/release/$version}"
[ ! -e "$out" ] || [ -z "$(ls -A "$out")" ] || fail "$out is not empty"
mkdir -p "$out"

# --- The packages; the same commit gives the same bytes -------------------------
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)"
export SOURCE_DATE_EPOCH
deploy/make-wheel.sh "$out"
deploy/make-wheel.sh --arch=aarch64 "$out"
deploy/make-sdist.sh "$out"
deploy/build.sh
deploy/make-deb.sh "$out"
/usr/bin/python3 tools/packages/sbom.py "$out"
(cd "$out" && LC_ALL=C sha256sum -- * >.SHA256SUMS && mv .SHA256SUMS SHA256SUMS)

# --- Signatures and the tag, last: a release that failed leaves none ------------
if [ -n "$key" ]; then
  gpg --batch --yes --local-user "$key" --armor --detach-sign --output "$out/SHA256SUMS.asc" "$out/SHA256SUMS"
  git -c gpg.format=openpgp tag --sign --local-user="$key" --message="Maypole $version" "$tag"
else
  echo "release: no --key, and no RELEASE_KEY: SHA256SUMS and the tag are not signed"
  git tag --annotate --message="Maypole $version" "$tag"
fi
echo "release: $version is in $out, and the tag $tag in this clone. Next:  git push origin $tag"
