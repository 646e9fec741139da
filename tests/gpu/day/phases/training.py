"""Trainings and values on CUDA tensors of one GPU, at each site and by each way of sharing memory."""

_WAYS = [
    ("agent, descriptor", {"MAYPOLE_GPU_SITE": "agent", "MAYPOLE_GPU_MEMORY": "descriptor"}),
    ("agent, ipc", {"MAYPOLE_GPU_SITE": "agent", "MAYPOLE_GPU_MEMORY": "ipc"}),
    ("host", {"MAYPOLE_GPU_SITE": "host"}),
]
# Of the losses on the GPU and on the CPU: other libraries multiply the matrices.
_TOLERANCE = 2e-3
# For the jobs of a number of ranks.
_FEWEST_SECONDS = 30


def _same(records, name):
    values = {record[name] for record in records}
    if len(values) != 1:
        raise AssertionError("the ranks' %s differ: %s" % (name, sorted(values)))
    return values.pop()


def _on_gpu(day, way, records):
    """Fails if the executor has not reduced on the GPU where it should have."""
    counts = [record["on_gpu"] for record in records]
    if not day.rehearsal and (way == "host") != (max(counts) == 0):
        raise AssertionError("operations that ran on the GPU: %s" % counts)
    return counts


def _train(day, values, ranks, steps, way, env):
    """The curves of the training without buckets and of that with them; they are the same."""
    with day.job(ranks, "torch_train.py", [steps], env=env) as job:
        job.check_ok(60)
        records = job.records()
    values["started_after_s"] = records[0]["started_after_s"]
    curves = []
    for kind in ("tensors", "buckets"):
        trained = [record[kind] for record in records]
        _same(trained, "digest")
        curves.append(trained[0]["losses"])
        values[kind] = {"losses": [curves[-1][0], curves[-1][-1]], "on_gpu": _on_gpu(day, way, trained),
                        "ms_per_step": max(mine["ms_per_step"] for mine in trained), "fallbacks": trained[0]["fallbacks"]}
        if not curves[-1][-1] < 0.5 * curves[-1][0]:
            raise AssertionError("it does not learn: %s" % curves[-1])
    return curves


def run(day):
    steps = 30 if day.rehearsal else 200
    _of_the_driver(day)
    # The most ranks first; of two, the usual way only.
    for ranks, ways in [(2, _WAYS[:1])] if day.rehearsal else [(4, _WAYS)] + [(2, _WAYS[:1])] * (not day.first):
        if day.seconds_left() < _FEWEST_SECONDS:
            day.skip("%d ranks" % ranks, "no time is left")
            continue
        _values(day, ranks, ways)
        curves = None
        with day.check("train on the CPU, %d ranks" % ranks) as values:
            curves = _train(day, values, ranks, steps, "host", {"DAY_DEVICE": "cpu"})
        for way, env in ways:
            with day.check("train, %d ranks, %s" % (ranks, way)) as values:
                _compare(values, _train(day, values, ranks, steps, way, env), curves)


def _compare(values, curves, of_cpu):
    apart = max(abs(a - b) / max(b, 1e-3) for curve, other in zip(curves, of_cpu) for a, b in zip(curve, other))
    values["apart_from_cpu"] = apart
    if apart > _TOLERANCE:
        raise AssertionError("a loss is %g apart from the CPU's" % apart)


def _values(day, ranks, ways):
    for way, env in ways:
        with day.check("values, %d ranks, %s" % (ranks, way)) as values:
            with day.job(ranks, "torch_values.py", [1 if day.first or day.rehearsal else 2], env=env) as job:
                job.check_ok(60)
                records = job.records()
            values.update(compared=records[0]["compared"], on_gpu=_on_gpu(day, way, records),
                          errors=records[0]["errors"])
            wrong = [difference for record in records for difference in record["differences"]]
            if wrong:
                raise AssertionError("%d differences: %s" % (len(wrong), wrong[:5]))
            for what, text in records[0]["errors"].items():
                if not text.startswith("mismatch") or "mismatched" not in text:
                    raise AssertionError("mismatched %s: %s" % (what, text))


def _of_the_driver(day):
    """The programs of tests/gpu, which know no framework: on the fake driver in a rehearsal."""
    agent = {"MAYPOLE_GPU_SITE": "agent", "MAYPOLE_NCCL_LIBRARY": "none"}
    with day.check("all kinds beside NumPy, 3 ranks") as values:
        with day.job(3, "kinds.py", [2, 5, 3], env=agent) as job:
            job.check_ok(40)
            records = job.records()
        values["on_gpu"] = sum(sum(ran.values()) for record in records for ran in record["on_gpu"])
        errors = [record["error"] for record in records if record["error"]]
        if errors or values["on_gpu"] == 0:
            raise AssertionError("errors: %s; on the GPU: %d" % (errors, values["on_gpu"]))
    with day.check("arrays in shared memory, 2 ranks") as values:
        with day.job(2, "shared.py", env={**agent, "MAYPOLE_GPU_MEMORY_BYTES": str(8 << 20)}) as job:
            job.check_ok(40)
            values["results"] = job.record(0)["results"]
        expected = {"in place": [[[3.0], 1]] * 3, "not shared": [[3.0], 0], "part": [[3.0], 1], "with room": [[3.0], 1]}
        for what, wanted in expected.items():
            if values["results"][what] != wanted:
                raise AssertionError("%s: %s, expected %s" % (what, values["results"][what], wanted))
