"""Makes the tables of docs/gpu-measured.md and docs/gpu-facts.md from the results of days on real GPUs.

    tests/gpu/day/tables.py [results.jsonl ...]     appends these to docs/gpu-day.jsonl, and writes the tables

A table stands between the lines `<!-- day: NAME -->` and `<!-- end of day -->`. A table shows 'not measured' for what
no day has measured. Lines of a rehearsal are refused. Of two results of one check, the later one counts.
"""

import json
import os
import re
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _HERE)
import results  # noqa: E402

DOCS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))), "docs")
PAGES = ("gpu-measured.md", "gpu-facts.md")
KEPT = "gpu-day.jsonl"
NOT_MEASURED = "not measured"
_BLOCK = re.compile(r"(<!-- day: (\w+) -->\n).*?(<!-- end of day -->\n)", re.S)
_SIZES = ("4 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB", "ResNet-50")
_PHASES = ("there", "conformance", "training", "figures", "nodes", "deaths", "allocators", "sanitizer", "arrays", "mps",
           "cores", "distributed")

# {(phase, check): values}
Found = Dict[Tuple[str, str], Dict[str, Any]]


class Rehearsed(ValueError):
    """Results of a rehearsal are no results."""


def find(lines: Sequence[Dict[str, Any]]) -> Tuple[Found, List[Dict[str, Any]]]:
    """The values of what was found or measured, and the lines that count."""
    if any(line.get("rehearsal") for line in lines):
        raise Rehearsed("these are the results of a rehearsal: nothing was measured")
    last = {(line["phase"], line["check"]): line for line in lines}
    return {key: line["values"] for key, line in last.items() if line["state"] in ("passed", "measured", "noted")}, \
        list(last.values())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head)] + list(rows)
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cell(value: Optional[Any], text: Callable[[Any], str] = str) -> str:
    return NOT_MEASURED if value is None else text(value)


def _microseconds(value: float) -> str:
    return "%.3g ms" % (value / 1000) if value >= 10000 else "%.0f us" % value


def _rate(value: float) -> str:
    return "%.3g TB/s" % (value / 1e12) if value >= 1e12 else "%.3g GB/s" % (value / 1e9)


def _machine(found: Found, _: List[Dict[str, Any]]) -> str:
    smi, driver = found.get(("there", "nvidia-smi"), {}), found.get(("there", "driver"), {})
    machine, nccl = found.get(("there", "machine"), {}), found.get(("there", "NCCL"), {})
    attributes = ", ".join("%s %s" % (name.replace("_", " "), driver[name]) for name in (
        "compute_mode", "virtual_memory", "posix_descriptors", "memory_pools", "ipc_events", "copy_engines")
        if name in driver)
    return _table(("what", "found"), [
        ("GPU", _cell(smi.get("name"))),
        ("driver", _cell(smi.get("driver_version"))),
        ("attributes of the GPU", attributes or NOT_MEASURED),
        ("NCCL", _cell(nccl.get("version"))),
        ("processor, cores", _cell(machine.get("processor"), lambda model: "%s, %d" % (model, machine["cores"]))),
        ("torch", _cell(machine.get("packages", {}).get("torch"))),
    ])


def _phases(_: Found, lines: List[Dict[str, Any]]) -> str:
    rows = []
    for phase in _PHASES:
        checks = [line for line in lines if line["phase"] == phase]
        whole = [line["values"]["end"] for line in checks if line["check"] == "(whole)"]
        counts = [sum(line["state"] == state and line["check"] != "(whole)" for line in checks)
                  for state in ("passed", "failed", "measured", "skipped")]
        rows.append([phase] + ([str(count) for count in counts] + whole if whole else [NOT_MEASURED] * 5))
    return _table(("phase", "passed", "failed", "measured", "skipped", "end"), rows)


_FACTS = (
    ("1", "kernels of two processes: share of each beside the other", ("overlap/kernel/share_here", "overlap/kernel/share_there")),
    ("2", "copies to, from page-locked memory and within the device, beside another process's kernel: share",
     ("overlap/copy_to_pinned/share_here", "overlap/copy_from_pinned/share_here", "overlap/copy_in_device/share_here")),
    ("3", "a stream's word, an event's query, a hand-over to another process: p50",
     ("latency/stream_word/p50", "latency/event_query/p50", "latency/hand_over/p50")),
    ("5", "float32 of 2, 4, 8 processes, 64 MiB: share of the copy rate",
     ("reduce/float32/k2/64MiB/share_of_copy", "reduce/float32/k4/64MiB/share_of_copy",
      "reduce/float32/k8/64MiB/share_of_copy")),
    ("", "copy within the device (read and written), to and from page-locked memory",
     ("copy/device_read_and_written", "copy/device_to_pinned", "copy/pinned_to_device")),
)


def _facts(found: Found, _: List[Dict[str, Any]]) -> str:
    units = {"B/s": _rate, "ns": lambda value: "%.1f us" % (value / 1000), "": lambda value: "%.2f" % value}

    def figures(phase: str) -> Dict[str, str]:
        measured = found.get((phase, "facts"), {})
        return {} if measured.get("meaningless") else {
            figure["name"]: units[figure["unit"]](figure["value"]) for figure in measured.get("figures", [])}

    columns = [figures(phase) for phase in ("figures", "mps")]
    return _table(("fact", "what", "measured", "under MPS"), [
        [number, what] + [", ".join(of.get(name, NOT_MEASURED) for name in names)
                          if any(name in of for name in names) else NOT_MEASURED for of in columns]
        for number, what, names in _FACTS])


def _median(measured: Dict[str, Any], size: str, library: str) -> Optional[float]:
    return measured.get("rows", {}).get(size, {}).get(library, {}).get("median_us")


def _allreduce(found: Found, columns: Sequence[Tuple[str, str, str, str]]) -> str:
    """columns: title, phase, check, library."""
    measured = [(found.get((phase, "allreduce, " + check), {}), library) for _, phase, check, library in columns]
    rows = [[size] + [_cell(_median(of, size, library), _microseconds) for of, library in measured] for size in _SIZES]
    rows = [row for row in rows if set(row[1:]) != {NOT_MEASURED}] or rows
    rows.append(["the device's copy rate, in the same run"] + [
        _cell(of.get("copy_bytes_per_second"), _rate) for of, _ in measured])
    return _table(["tensor"] + [title for title, *_ in columns], rows)


def _idle(ranks: int, *more: Tuple[str, str, str, str]) -> Callable[[Found, List[Dict[str, Any]]], str]:
    columns = [(title, "figures", "%d ranks, %s" % (ranks, site), library) for title, site, library in (
        ("staged", "default", "staged"), ("arena", "default", "arena"), ("all by the executor: staged", "agent", "staged"),
        ("arena", "agent", "arena"), ("all by the host", "host", "staged"), ("Gloo", "agent", "gloo"))]
    return lambda found, _: _allreduce(found, columns + list(more))


def _busy(found: Found, _: List[Dict[str, Any]]) -> str:
    return _allreduce(found, [(title, "figures", "2 ranks, %s, beside a busy kernel" % site, library)
                              for title, site, library in (
        ("staged", "default", "staged"), ("arena", "default", "arena"), ("all by the executor: staged", "agent", "staged"),
        ("arena", "agent", "arena"), ("Gloo", "agent", "gloo"))])


def _nccl(found: Found, _: List[Dict[str, Any]]) -> str:
    rows = []
    for size in ("1 MiB", "16 MiB", "64 MiB"):
        row = [size]
        for site in ("agent", "client"):
            row += [_cell(found.get(("nodes", "allreduce beside NCCL, 2 nodes, " + site), {}).get("rows", {}).get(
                size, {}).get(what), _microseconds) for what in ("maypole", "nccl")]
        rows.append(row)
    return _table(("tensor", "site agent", "NCCL itself", "site client", "NCCL itself"), rows)


def _deaths(found: Found, _: List[Dict[str, Any]]) -> str:
    def slowest(check: str) -> Optional[float]:
        seconds = found.get(("deaths", check), {}).get("seconds")
        return max(seconds.values()) if seconds else None

    rows = [(check, _cell(slowest(check), lambda value: "%.2f s" % value)) for check in (
        "a rank is killed, descriptor", "a rank is killed, ipc", "the executor is killed")]
    rows += [(check, _cell(found.get(("nodes", check), {}).get("ended_after_s"), lambda value: "%.2f s" % value))
             for check in ("abort of busy communicators, 3 nodes, agent", "abort of busy communicators, 3 nodes, client")]
    starts = found.get(("deaths", "starts and kills"), {}).get("starts")
    less = found.get(("deaths", "free memory after it"), {}).get("bytes_less")
    rows.append(("GPU memory that is not free again after %sstarts and kills" % ("" if starts is None else "%d " % starts),
                 _cell(less, lambda value: "%d MiB" % (value >> 20))))
    return _table(("what", "until the last rank knew it, or all had ended"), rows)


def _cores(found: Found, _: List[Dict[str, Any]]) -> str:
    jobs: Dict[Any, Dict[str, Any]] = {}
    for (phase, _check), values in found.items():
        if phase == "cores":
            for size, row in values.get("rows", {}).items():
                jobs.setdefault(values["ranks"], {"rows": {}})["rows"].setdefault(size, {}).update(row)
    rows = []
    for ranks in (2, 4, 8, 16):
        for size in ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB"):
            rows.append([str(ranks), size] + [_cell(_median(jobs.get(ranks, {}), size, library), _microseconds)
                                              for library in ("staged", "arena", "gloo", "mpi")])
    return _table(("ranks", "tensor", "staged", "arena", "Gloo", "MPI"), rows)


def _distributed(found: Found, _: List[Dict[str, Any]]) -> str:
    measured = found.get(("distributed", "all_reduce beside Gloo, 2 ranks"), {})
    rows = [[size] + [_cell(_median(measured, size, library), _microseconds) for library in ("group", "staged", "gloo")]
            for size in ("64 KiB", "1 MiB", "16 MiB", "64 MiB", "ResNet-50")]
    return _table(("tensor", "torch.distributed on maypole", "maypole.torch, staged", "torch.distributed on Gloo"), rows)


TABLES: Dict[str, Callable[[Found, List[Dict[str, Any]]], str]] = {
    "machine": _machine, "phases": _phases, "facts": _facts, "nccl": _nccl, "deaths": _deaths,
    "cores": _cores, "distributed": _distributed, "allreduce_4": _idle(4), "allreduce_busy": _busy,
    "allreduce_2": _idle(2, ("under MPS, staged", "mps", "2 ranks, agent", "staged"),
                         ("arena", "mps", "2 ranks, agent", "arena")),
}


def with_tables(text: str, lines: Sequence[Dict[str, Any]]) -> str:
    """The page with the tables of these results."""
    found, counting = find(lines)
    return _BLOCK.sub(lambda m: m.group(1) + TABLES[m.group(2)](found, counting) + m.group(3), text)


def kept(docs: str = DOCS) -> List[Dict[str, Any]]:
    path = os.path.join(docs, KEPT)
    return results.read(path) if os.path.exists(path) else []


def main() -> int:
    lines = kept()
    try:
        for path in sys.argv[1:]:
            lines += results.read(path)
        find(lines)
    except (OSError, ValueError) as error:
        print("tables.py: %s" % error, file=sys.stderr)
        return 1
    if lines:
        with open(os.path.join(DOCS, KEPT), "w", encoding="utf-8") as f:
            f.write("".join(json.dumps(line) + "\n" for line in lines))
    for page in PAGES:
        path = os.path.join(DOCS, page)
        with open(path, encoding="utf-8") as f:
            text = f.read()
        with open(path, "w", encoding="utf-8") as f:
            f.write(with_tables(text, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
