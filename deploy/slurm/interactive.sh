#!/bin/sh
# A shell on a node of Slurm, with CORES cores for ranks (default: 4):
#   deploy/slurm/interactive.sh [CORES [OPTIONS OF SRUN]]
# In it, `maypolerun -np 4 python3 train.py` starts a job on that node, and
# `python3 train.py` one of a single rank. For several nodes:
#   salloc --nodes=2 --ntasks-per-node=2, and in its shell: srun python3 train.py
set -eu
cores="${1:-4}"
[ $# = 0 ] || shift
exec srun --nodes=1 --ntasks=1 --cpus-per-task="$cores" --pty "$@" "${SHELL:-/bin/sh}"
