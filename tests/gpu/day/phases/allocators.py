"""torch's CUDA allocators, graphs, streams, and a GPU without memory, beside Maypole's traffic."""

_CASES = [
    ("out_of_memory", "on purpose", {}),
    ("plain", "torch's allocator", {}),
    ("plain", "expandable segments", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ("plain", "cudaMallocAsync", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    ("graphs", "captured beside traffic", {}),
]


def run(day):
    # In a rehearsal there are other programs behind the same words.
    seen = set()
    for program, what, env in _CASES:
        if day.rehearsal and program in seen:
            day.skip("%s, %s" % (program, what), "it differs by the CUDA allocator only, of which torch has none here")
            continue
        seen.add(program)
        with day.check("%s, %s" % (program, what)) as values:
            with day.job(2, "torch_allocators.py", [program], env={"MAYPOLE_GPU_SITE": "agent", **env}) as job:
                job.check_ok(30)
                values.update(job.record(0))
            if not day.rehearsal and program != "out_of_memory" and values["on_gpu"] == 0:
                raise AssertionError("operations do not run on the GPU")
