"""The picture: time of an operation over its size, a panel per setting."""

import math

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator  # noqa: E402

from contest import analysis
from contest.plan import COLUMNS, RESNET, SETTINGS, SIZES, bytes_of, label

# Maypole in strong colours, peers in pale ones.
_STYLES = {
    "maypole": dict(color="#c1121f", marker="o", linewidth=2.4),
    "maypole_arena": dict(color="#7b2cbf", marker="D", linewidth=2.4),
    "maypole_py": dict(color="#f08a24", marker="v", linewidth=1.6),
    "maypole_py_arena": dict(color="#b08900", marker="^", linewidth=1.6),
    "torch": dict(color="#1f77b4", marker="s", linewidth=1.4),
    "torch_buckets": dict(color="#7fb8e0", marker="s", linewidth=1.4),
    "openmpi": dict(color="#2a9d5c", marker="P", linewidth=1.4),
    "gloo": dict(color="#6c757d", marker="X", linewidth=1.4),
}


def draw(results: analysis.Results, path: str) -> None:
    settings = [s for s in SETTINGS if s.key in analysis.setting_keys(results)]
    rows = max(1, math.ceil(len(settings) / 2))
    figure = pyplot.figure(figsize=(14, 5.2 * rows + 4.6))
    grid = figure.add_gridspec(rows + 1, 2, height_ratios=[5.2] * rows + [3.4])
    panels = []
    for number, setting in enumerate(settings):
        panel = figure.add_subplot(grid[number // 2, number % 2])
        _panel(panel, results, setting)
        panels.append(panel)
    bars = figure.add_subplot(grid[rows, :])
    _resnet(bars, results, settings)
    handles = {}
    for panel in panels + [bars]:
        for handle, name in zip(*panel.get_legend_handles_labels()):
            handles.setdefault(name, handle)
    figure.suptitle("Allreduce, float32 sum, in place: median time of an "
                    "operation (less is better)", fontsize=14)
    figure.legend(handles.values(), handles.keys(), loc="lower center",
                  ncol=3, frameon=False, fontsize=11)
    figure.tight_layout(rect=(0, 1.0 / figure.get_figheight(), 1, 0.985))
    figure.savefig(path, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def _resnet(panel, results: analysis.Results, settings) -> None:
    """Bars: ResNet-50's gradients, a group per setting."""
    columns = [c for c in COLUMNS if RESNET in c.whats]
    width = 0.8 / len(columns)
    for number, column in enumerate(columns):
        found = [(i, results.case(s.key, RESNET)) for i, s in enumerate(settings)]
        bars = [(i + (number - (len(columns) - 1) / 2) * width,
                 case.median(column.key) / 1e3)
                for i, case in found if case is not None and case.has(column.key)]
        if not bars:
            continue
        style = _STYLES[column.key]
        drawn = panel.bar(*zip(*bars), width=0.92 * width, label=column.title,
                          color=style["color"])
        panel.bar_label(drawn, fmt="%.0f ms", fontsize=9, padding=2)
    panel.set_title("ResNet-50's 161 gradients (102 MB), from Python",
                    fontsize=12)
    panel.set_xticks(range(len(settings)))
    panel.set_xticklabels([s.title for s in settings])
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.set_ylim(low / 2, high * 2)
    panel.set_ylabel("ms")
    panel.grid(True, axis="y", which="major", color="#dddddd", linewidth=0.8)
    panel.set_axisbelow(True)


def _panel(panel, results: analysis.Results, setting) -> None:
    cases = [(what, results.case(setting.key, what)) for what in SIZES]
    cases = [(what, case) for what, case in cases if case is not None]
    for column in COLUMNS:
        points = [(bytes_of(what), case.median(column.key))
                  for what, case in cases if case.has(column.key)]
        if points:
            panel.plot(*zip(*points), label=column.title, markersize=6,
                       **_STYLES[column.key])
    for points, name, line in _bounds(results, setting, cases):
        panel.plot(*zip(*points), linestyle=line, color="black", linewidth=1.3,
                   label=name)
    panel.set_xscale("log")
    panel.set_yscale("log")
    ticks = [bytes_of(what) for what, _ in cases]
    panel.xaxis.set_major_locator(FixedLocator(ticks))
    panel.xaxis.set_major_formatter(
        FixedFormatter([label(what) for what, _ in cases]))
    # The large sizes are near each other.
    pyplot.setp(panel.get_xticklabels(), rotation=30, ha="right")
    panel.xaxis.set_minor_locator(NullLocator())
    low, high = panel.get_ylim()
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    panel.yaxis.set_major_locator(FixedLocator([10.0**d for d in decades]))
    panel.yaxis.set_major_formatter(FixedFormatter([_time(d) for d in decades]))
    panel.set_ylim(low, high)
    panel.tick_params(labelsize=10)
    panel.yaxis.set_minor_locator(NullLocator())
    panel.grid(True, which="major", color="#dddddd", linewidth=0.8)
    panel.set_title(setting.title, fontsize=12)


def _time(decade: int) -> str:
    unit, base = (("µs", 0) if decade < 3 else ("ms", 3) if decade < 6
                  else ("s", 6))
    return "%g %s" % (10.0**(decade - base), unit)


def _bounds(results: analysis.Results, setting, cases):
    """(points, name, line style) of the machine's limits."""
    large = [(bytes_of(what), case) for what, case in cases
             if bytes_of(what) >= 1 << 20]
    if large:
        yield ([(size, analysis.bound_us(setting.ranks, size, case.memcpy()))
                for size, case in large],
               "bound: each buffer read and written once, at memcpy's rate",
               "--")
    wire = results.wire.get(setting.key)
    if large and wire:
        nodes = setting.nodes
        yield ([(size, 2 * (nodes - 1) / nodes * size * 8e6 / max(wire))
                for size, _ in large], "bound: the wire, at iperf3's rate", ":")
