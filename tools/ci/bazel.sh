# To be sourced before bazel is called; POSIX sh.
#
# Bazel keeps what it builds below the home directory. A user without a
# writable one (nobody, a container's user) gets one in the temporary directory.
if [ ! -w "${HOME:-/nonexistent}" ]; then
  HOME="${TMPDIR:-/tmp}/maypole-home-$(id -u)"
  mkdir -p "$HOME"
  export HOME
fi
