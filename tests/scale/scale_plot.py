"""The picture: the costs that grow with the number of nodes."""

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from scale_page import Results

_NOW = dict(color="#c1121f", marker="o", linewidth=2.2)
_OWN = dict(color="#7b2cbf", marker="D", linewidth=1.6)
_TOGETHER = dict(color="#f08a24", marker="v", linewidth=1.8)
_EACH = dict(color="#6c757d", marker="X", linewidth=1.4)


def draw(results: Results, path: str) -> None:
    figure, panels = pyplot.subplots(2, 2, figsize=(12, 8.5))

    def line(panel, label, style, what, **wanted):
        sizes = results.nodes(**wanted)
        if sizes:
            panel.plot(sizes, [what(n) for n in sizes], label=label, **style)

    def job(part, key, factor=1.0, **wanted):
        return lambda n: factor * results.job(n, part, key, **wanted)

    def whole(get, **wanted):
        return lambda n: results.median(get, nodes=n, shared=True, **wanted)

    now, own, each = dict(program="now"), dict(program="now", shared=False), dict(program="each")
    panel = panels[0][0]
    panel.set_title("Last report to last Execute, p50, ms (both programs; more than 64: to the first node)", fontsize=10)
    line(panel, "one is late", _NOW, job("late", "step_p50_ms"), **now)
    line(panel, "one is late, a connection each", _OWN, job("late", "step_p50_ms", shared=False), **own)
    line(panel, "all together", _TOGETHER, job("together", "step_p50_ms"), **now)
    line(panel, "one is late, sent to each node", _EACH, job("late", "step_p50_ms", program="each"), **each)
    panel = panels[0][1]
    panel.set_title("CPU time of the coordinator for a step, ms")
    line(panel, "now", _NOW, job("together", "coordinator_cpu_s", 1e3), **now)
    line(panel, "now, a connection each", _OWN, job("together", "coordinator_cpu_s", 1e3, shared=False), **own)
    line(panel, "sent to each node", _EACH, job("together", "coordinator_cpu_s", 1e3, program="each"), **each)
    for panel, title, get in (
            (panels[1][0], "Start: first hello to last Endpoints, s (both programs)",
             lambda r: r["start"]["connected_s"]),
            (panels[1][1], "Memory of the coordinator, MB", lambda r: r["most_resident_bytes"] / 1e6)):
        panel.set_title(title)
        line(panel, "now", _NOW, whole(get, program="now"), **now)
        line(panel, "sent to each node", _EACH, whole(get, program="each"), **each)
    for panel in panels.flat:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(results.nodes(program="now"))
        panel.set_xticklabels([f"{n:,}" for n in results.nodes(program="now")])
        panel.set_xlabel("nodes")
        panel.grid(True, axis="y", which="major", color="#dddddd", linewidth=0.8)
        panel.legend(frameon=False)
    figure.suptitle("One coordinator, one job: 8 ranks on each node, 161 tensors a step", fontsize=13)
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(figure)
