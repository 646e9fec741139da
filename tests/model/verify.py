#!/usr/bin/env python3
"""Verifies the models of the board protocol, of the frozen tier and of the recovery by executors
with spin, and that mutants fail.

usage: verify.py [MODEL...]   (tickets, ring, eager, rendezvous, sleep, names, schedule, recovery;
all if none)

Each model is verified in several sizes: pan must explore all states and find no
error. In each mutant, a model without one rule of the protocol, pan must find
an error. A failing verification prints the steps that lead to the error.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = 300  # far more than any takes (under a minute)
MEGABYTES = 2000

SIZES = {
    "tickets": ["GENERATIONS=3", "RANKS=3 GENERATIONS=1", "RANKS=3 GENERATIONS=2"],
    "ring": ["", "PLACERS=1 TICKETS=14"],
    "eager": ["", "DEATH GENERATIONS=2", "DEATH BUFFERS=1 GENERATIONS=2", "LEAVE", "LEAVE RANKS=3 GENERATIONS=2"],
    "rendezvous": ["CHUNKS=3", "DEATH", "DEATH RUNS=1 CHUNKS=3", "RANKS=3 RUNS=1 CHUNKS=3", "RANKS=3 RUNS=1 CHUNKS=1 DEATH"],
    "sleep": [""],
    "names": ["STEPS=5", "NAMES=3", "SLOTS=2 NAMES=3"],
    "schedule": ["", "FAN=1", "FAN=2", "FAN=2 NODES=4 POSITIONS=1"],
    "recovery": ["BREAKS=1", "GENERATIONS=2", "NODES=3 NAMES=1", "NAMES=1 GENERATIONS=2 COORDINATORS=3",
                 "NAMES=1 LATE=1", "NAMES=1 CRASHES=1"],
}
MUTANTS = {
    "tickets": ["LOOK_FIRST", "STORE_TICKET", "START_AHEAD", "NO_GENERATION", "SMALL_RING"],
    "ring": ["NO_LOOK PLACERS=1 TICKETS=10", "PUBLISH_LATE PLACERS=1 TICKETS=10", "LOOK_AT_LAST PLACERS=1 TICKETS=10"],
    "eager": ["CLAIM_BY_STORE", "REUSE_EARLY RANKS=3 GENERATIONS=2", "REUSE_UNDECIDED RANKS=3 GENERATIONS=2",
              "NO_KEEP LEAVE RANKS=3 GENERATIONS=2", "NO_OVERRULE DEATH GENERATIONS=2",
              "TICKET_ONLY DEATH GENERATIONS=2", "LOOK_THEN_COUNT LEAVE", "RANK_LOOKS_FIRST LEAVE"],
    "rendezvous": ["PLACE_EARLY CHUNKS=3", "FREE_BY_SELF RANKS=3 RUNS=1 CHUNKS=3", "PUBLISH_FIRST", "ANY_ORDER",
              "COMMIT_EARLY DEATH", "NO_COMMIT DEATH", "DROP_COMMITTED DEATH"],
    "sleep": ["NO_WAKER_FENCE", "NO_SECOND_LOOK", "SEEN_LATE", "NO_FLAG_AT_SUBMIT", "STOP_WITHOUT_FLAG",
              "NO_WAKE_OF_OWN SECOND DIRECT", "SUBMIT_AS_WAITER", "STOP_AS_WAITER"],
    "names": ["FREE_BY_FIRST", "GIVE_BUSY", "KEEP_NUMBER", "NO_HOLDER", "FROM_ZERO"],
    "schedule": ["ONE_READY", "LATE_READY", "READY_ALONE FAN=1", "REFUSED_ALONE FAN=1", "OWN_POSITION FAN=1",
                 "NOT_TOLD FAN=2"],
    "recovery": ["DECIDE_EARLY NAMES=1", "START_UNKNOWN NAMES=1", "FORGET_DECISIONS NAMES=1", "SETTLE_SENT",
                 "NO_REISSUE NAMES=1", "REISSUE_ALL NAMES=1", "OLD_NUMBERS", "NO_START NAMES=1", "NO_REPORT NAMES=1",
                 "KEEP_COUNTS NAMES=1 GENERATIONS=2", "RESET_EARLY NAMES=1 GENERATIONS=2", "OLD_TERM NAMES=1",
                 "OLD_STREAM NAMES=1", "HALF_STATE NAMES=1", "LOSE_AT_BREAK NAMES=1", "REPEAT_AT_BREAK NAMES=1",
                 "KEEP_LAST NAMES=1 LATE=1", "ANY_EXECUTOR NAMES=1 CRASHES=1"],
}


class Broken(Exception):
    """The verification could not be done."""


def command(arguments, directory):
    done = subprocess.run(arguments, cwd=directory, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stdout + done.stderr


def verify(model, defines, directory):
    """(errors found, pan's output, spin's options)."""
    shutil.copy(os.path.join(HERE, model + ".pml"), os.path.join(directory, "m.pml"))
    options = ["-D" + d for d in defines.split()]
    status, out = command(["spin"] + options + ["-a", "m.pml"], directory)
    if status != 0 or "rror" in out:
        raise Broken("spin: " + out)
    status, out = command(["gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=4096",
                           "-DMEMLIM=%d" % MEGABYTES, "-o", "pan", "pan.c"], directory)
    if status != 0:
        raise Broken("gcc: " + out)
    status, out = command(["./pan", "-n", "-m1000000"], directory)
    errors = re.search(r"errors: (\d+)", out)
    if errors is None or "max search depth too small" in out:
        raise Broken("pan: " + out)
    if errors.group(1) == "0" and "Search not completed" in out:
        raise Broken("pan has not seen all states: " + out)
    return int(errors.group(1)), out, options


def line(model, defines, text):
    print("%-8s %-40s %s" % (model, defines or "-", text), flush=True)


def check(model, defines, mutant):
    """True if the result is the expected one."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            errors, out, options = verify(model, defines, directory)
        except (Broken, OSError, subprocess.TimeoutExpired) as e:
            line(model, defines, "FAILED: %s" % e)
            return False
        states = re.search(r"([\d.e+]+) states, stored", out).group(1)
        if mutant:
            why = re.search(r"pan:1: (.*?) \(at depth", out)
            line(model, defines, "found: %s" % why.group(1) if errors else "FAILED: the mutant was not found")
            return errors > 0
        line(model, defines, "errors: %d, %s states" % (errors, states))
        if errors:
            print(out)
            print(command(["spin"] + options + ["-t", "-p", "m.pml"], directory)[1])
        return errors == 0


def main():
    models = [a for a in sys.argv[1:] if a != "-v"] or list(SIZES)
    if any(m not in SIZES for m in models):
        sys.exit(__doc__)
    if shutil.which("spin") is None:
        sys.exit("spin is not installed (deploy/setup.sh installs it)")
    done = [check(m, d, False) for m in models for d in SIZES[m]]
    done += [check(m, d, True) for m in models for d in MUTANTS[m]]
    print("%d as they should be, %d not" % (done.count(True), done.count(False)))
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()
