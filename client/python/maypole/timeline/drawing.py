"""Draws a timeline with matplotlib.

Each rank and executor has a row of bars; times in which all others waited for a rank are red.
"""

from typing import Any

from maypole.timeline.trace import Operation, Trace, rank_of

_COLOURS = {
    "INPUT": "#b8b8b8",
    "RANKS": "#f2c14e",
    "NODES": "#8fb8de",
    "DATA": "#3a7d44",
    "order": "#8fb8de",
    "NETWORK": "#5f5aa2",
}
_MEANING = {
    "INPUT": "its own input is not ready",
    "RANKS": "waits for ranks of its node",
    "NODES": "waits for other nodes, or for its turn",
    "DATA": "data moves",
    "NETWORK": "data moves between nodes",
}
_LATE = "#c1121f"
_LANES = 6  # that are drawn of a track
_LABELS = 12  # of the longest waits
_NAME_LENGTH = 34


Rectangle = tuple[float, float, float, float]  # begin, end, top, height


def draw(trace: Trace, path: str, title: str) -> None:
    """Writes the PNG. Raises ImportError without matplotlib."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    rows, tops, heights = _rows(trace)
    figure, axes = pyplot.subplots(figsize=(13, 2.2 + 0.42 * sum(heights.values())))
    bars: dict[str, list[Rectangle]] = {}
    for operation in trace.operations + trace.executors:
        at = (operation.track, _lane(operation))
        if at in rows:
            _add_bars(operation, rows[at], bars)
    for colour, spans in bars.items():
        _rectangles(axes, spans, colour, zorder=2)
    _draw_late(axes, trace, tops, heights)
    _label_axes(axes, trace, tops, heights, title)
    figure.tight_layout(rect=(0, 0.5 / figure.get_figheight(), 1, 1))  # the legend is below
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _lane(operation: Operation) -> int:
    """An executor has two rows: what it orders, and what its network does."""
    if rank_of(operation.track) is None:
        return int(operation.name.startswith("NETWORK"))
    return operation.lane


def _rows(trace: Trace) -> tuple[dict[tuple[str, int], float], dict[str, int], dict[str, int]]:
    """Returns the position of each lane of a track, counted from the top.

    Also returns where each track begins, and how many of its lanes are drawn.
    """
    lanes: dict[str, set[int]] = {track: set() for track in trace.tracks}
    for operation in trace.operations + trace.executors:
        lanes[operation.track].add(_lane(operation))
    rows: dict[tuple[str, int], float] = {}
    tops: dict[str, int] = {}
    heights: dict[str, int] = {}
    at = 0
    for track in trace.tracks:
        shown = sorted(lanes[track])[:_LANES]
        for i, lane in enumerate(shown):
            rows[track, lane] = at + i
        tops[track] = at
        heights[track] = max(1, len(shown))
        at += heights[track]
    return rows, tops, heights


def _add_bars(operation: Operation, row: float, bars: dict[str, list[Rectangle]]) -> None:
    if rank_of(operation.track) is None:
        kind = "NETWORK" if operation.name.startswith("NETWORK") else "order"
        bars.setdefault(_COLOURS[kind], []).append((operation.begin, operation.end, row + 0.3, 0.4))
        return
    for phase in operation.phases:
        bars.setdefault(_COLOURS.get(phase.name, "#000000"), []).append((phase.begin, phase.end, row + 0.14, 0.72))


def _rectangles(axes: Any, spans: list[Rectangle], colour: str, zorder: int) -> None:
    from matplotlib.collections import PolyCollection
    corners = [[(a, y), (b, y), (b, y + h), (a, y + h)] for a, b, y, h in spans]
    # The edge keeps short bars visible.
    axes.add_collection(PolyCollection(corners, facecolor=colour, edgecolor=colour, linewidth=0.3, zorder=zorder))


def _draw_late(axes: Any, trace: Trace, tops: dict[str, int], heights: dict[str, int]) -> None:
    """Draws the critical path.

    It is red behind everything that the late rank did meanwhile; a line through the other ranks marks its arrival.
    """
    ranks = {rank_of(track): track for track in trace.tracks if rank_of(track) is not None}
    bottom = max((tops[t] + heights[t] for t in ranks.values()), default=1)
    for i, late in enumerate(sorted(trace.late, key=lambda late: -late.seconds)):
        track = ranks.get(late.rank)
        if track is None:
            continue
        _rectangles(axes, [(late.begin, late.end, tops[track] + 0.02, heights[track] - 0.04)], _LATE, zorder=1)
        if i >= _LABELS:
            continue
        axes.plot([late.end, late.end], [0, bottom], color=_LATE, linewidth=0.8, linestyle=":", zorder=3)
        if late.seconds > 0.04 * trace.end:
            name = late.tensor if len(late.tensor) <= _NAME_LENGTH else "..." + late.tensor[3 - _NAME_LENGTH:]
            axes.text((late.begin + late.end) / 2, tops[track] + heights[track] / 2,
                      f"{late.seconds * 1000:.1f} ms\n{name}", color="white", fontsize=8, ha="center", va="center",
                      clip_on=True, zorder=4)


def _label_axes(axes: Any, trace: Trace, tops: dict[str, int], heights: dict[str, int], title: str) -> None:
    from matplotlib.patches import Patch
    bottom = max((tops[t] + heights[t] for t in trace.tracks), default=1)
    for track in trace.tracks:
        axes.axhline(tops[track] + heights[track], color="#dddddd", linewidth=0.6, zorder=0)
    axes.set_yticks([tops[track] + heights[track] / 2 for track in trace.tracks], trace.tracks)
    axes.set_ylim(bottom, 0)
    axes.set_xlim(0, max(trace.end, 1e-6))
    axes.set_xlabel("seconds")
    axes.set_title(title, loc="left", fontsize=10)
    legend = [Patch(color=_LATE, label="all others wait for this rank")]
    legend += [Patch(color=_COLOURS[name], label=f"{name}: {meaning}") for name, meaning in _MEANING.items()]
    axes.figure.legend(handles=legend, loc="lower center", ncol=3, fontsize=8, frameon=False)
