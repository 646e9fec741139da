"""Ranks disagree about an operation: all get the same error, and the job continues."""

import json
import time

from faults import Fault, Outcome, check_seconds, expect


def run(scene, layout, fault):
    spec, text = fault.args
    start = time.monotonic()
    with scene.job(layout, "mismatched.py", [json.dumps(spec)]) as job:
        if job.statuses() != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
        records = job.records()
        pause = scene.check_witness(start)
    for r, record in enumerate(records):
        if record["text"] != text:
            raise AssertionError("rank %d was told\n  %s\nexpected\n  %s" % (r, record["text"], text))
        if record["total"] != job.np:
            raise AssertionError("the name's next use gave rank %d %s" % (r, record["total"]))
    since = records[max(int(r) for r in spec["odd"])]["since"]
    outcome = Outcome({"all": max(record["seen"] for record in records) - since}, {"all": text}, pause)
    check_seconds(fault, outcome)
    return outcome


def duplicate(scene, layout, fault):
    start = time.monotonic()
    with scene.job(layout, "duplicate.py") as job:
        if job.statuses() != [0] * job.np:
            raise AssertionError("statuses %s" % job.statuses())
        records = job.records()
        pause = scene.check_witness(start)
    for r, record in enumerate(records):
        if record["totals"] != [job.np, 2 * job.np]:
            raise AssertionError("rank %d: %s" % (r, record))
    expect(r"allreduce 'grad\.w'.* is still pending.*", records[0]["text"], "the rank")
    outcome = Outcome({"that rank": records[0]["seen"] - records[0]["since"]}, {"that rank": records[0]["text"],
                                                                                "others": None}, pause)
    check_seconds(fault, outcome)
    return outcome


def mismatch(name, what, everywhere, odd, text):
    """`odd`: the arguments that differ on rank 3, or {rank: arguments} for several."""
    if not all(key.isdigit() for key in odd):
        odd = {"3": odd}
    return Fault(name="mismatch-" + name, topic="mismatches", what=what,
                 sees="all: the same error, before any data moves; the job continues", layouts=("1x4", "2x2"), run=run,
                 long_layouts=() if name in ("dtype", "shape", "op") else ("1x4",),
                 bound=1.0, args=({"all": everywhere, "odd": odd}, text))


def words(what, common, odd, each, kind="allreduce", more=""):
    return ("%s 'grad.w': mismatched %s: ranks 0,1,2 submitted %s, rank 3 submitted %s; "
            "every rank must submit the same %s%s" % (kind, what, common, odd, each, more))


FIRST = " except for the first dimension"

FAULTS = [
    mismatch("dtype", "dtypes", {"n": 3}, {"code": "d"}, words("dtypes", "float32", "float64", "dtype")),
    mismatch("shape", "shapes", {"shape": [3, 2]}, {"shape": [4, 2]}, words("shapes", "[3, 2]", "[4, 2]", "shape")),
    mismatch("dims", "numbers of dimensions", {"shape": [6]}, {"shape": [3, 2]}, words("shapes", "[6]", "[3, 2]", "shape")),
    mismatch("scalar", "a scalar and a tensor of one element", {"shape": []}, {"shape": [1]},
             words("shapes", "[]", "[1]", "shape")),
    mismatch("op", "reductions", {"n": 3}, {"op": 0},
             words("reduction operations", "sum", "average", "reduction")),
    mismatch("prescale", "prescale factors", {"n": 3}, {"prescale": 0.5},
             words("prescale factors", "1", "0.5", "prescale factor")),
    mismatch("postscale", "postscale factors", {"n": 3}, {"postscale": 0.25},
             words("postscale factors", "1", "0.25", "postscale factor")),
    mismatch("root", "root ranks of a broadcast", {"n": 3, "kind": "broadcast"}, {"root": 1},
             words("root ranks", "0", "1", "root rank", "broadcast")),
    mismatch("broadcast-shape", "shapes of a broadcast", {"n": 3, "kind": "broadcast"}, {"n": 4},
             words("shapes", "[3]", "[4]", "shape", "broadcast")),
    mismatch("broadcast-dtype", "dtypes of a broadcast", {"n": 3, "kind": "broadcast"}, {"code": "q"},
             words("dtypes", "float32", "int64", "dtype", "broadcast")),
    mismatch("allgather-shape", "rows of an allgather", {"shape": [2, 4], "kind": "allgather"}, {"shape": [2, 5]},
             words("shapes", "[*, 4]", "[*, 5]", "shape", "allgather", FIRST)),
    mismatch("allgather-dims", "numbers of dimensions of an allgather", {"shape": [2, 4], "kind": "allgather"},
             {"shape": [8]}, words("shapes", "[*, 4]", "[*]", "shape", "allgather", FIRST)),
    mismatch("allgather-dtype", "dtypes of an allgather", {"shape": [2, 4], "kind": "allgather"}, {"code": "i"},
             words("dtypes", "float32", "int32", "dtype", "allgather")),
    mismatch("large", "shapes of 4 MB", {"n": 1000000}, {"n": 1000001},
             words("shapes", "[1000000]", "[1000001]", "shape")),
    mismatch("three", "three shapes", {"n": 3}, {"1": {"n": 4}, "3": {"n": 5}},
             "allreduce 'grad.w': mismatched shapes: ranks 0,2 submitted [3], rank 1 submitted [4], rank 3 submitted [5]; "
             "every rank must submit the same shape"),
    Fault(name="duplicate-name", topic="mismatches", what="a rank submits a name that is pending already",
          sees="that rank: an error of the call; the first operation and all other ranks continue",
          layouts=("1x4", "2x2"), run=duplicate, bound=0.2),
]
