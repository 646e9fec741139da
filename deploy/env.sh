# Puts the programs of this source build on PATH and the Python package on
# PYTHONPATH. Source it from sh, bash or zsh, in any directory:
#   . deploy/env.sh

# Find the path of this file. bash and zsh have it in a variable; for other
# shells, /proc shows which file the shell is reading.
if [ -n "${BASH_SOURCE:-}" ]; then
  _maypole_file="${BASH_SOURCE}"
elif [ -n "${ZSH_VERSION:-}" ]; then
  eval '_maypole_file="${(%):-%x}"'
else
  _maypole_file=""
  for _maypole_fd in /proc/$$/fd/*; do
    case "$(readlink "$_maypole_fd" 2>/dev/null)" in
      */deploy/env.sh) _maypole_file="$(readlink "$_maypole_fd")" ;;
    esac
  done
  unset _maypole_fd
fi

if [ -f "$_maypole_file" ]; then
  _maypole_root="$(cd "$(dirname "$_maypole_file")/.." >/dev/null && pwd)"
  case ":$PATH:" in
    *":$_maypole_root/out/bin:"*) ;;
    *) export PATH="$_maypole_root/out/bin:$PATH" ;;
  esac
  case ":${PYTHONPATH:-}:" in
    *":$_maypole_root/client/python:"*) ;;
    *) export PYTHONPATH="$_maypole_root/client/python${PYTHONPATH:+:$PYTHONPATH}" ;;
  esac
  export MAYPOLE_LIBRARY="$_maypole_root/out/lib/libmaypole.so"
  if [ ! -x "$_maypole_root/out/bin/maypolerun" ] || [ ! -f "$MAYPOLE_LIBRARY" ]; then
    echo "env.sh: Maypole is not built yet: run $_maypole_root/deploy/build.sh" >&2
  elif [ -n "${BASH_VERSION:-}" ] && [ "${-#*i}" != "$-" ]; then
    # An interactive bash completes our programs' options.
    for _maypole_file in maypolerun maypolectl maypole-worker maypole-coordinator; do
      eval "$("$_maypole_file" --completion=bash)"
    done
  fi
else
  echo "env.sh: cannot find the path of this file in this shell: use bash or zsh" >&2
fi
unset _maypole_file _maypole_root
