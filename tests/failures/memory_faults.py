"""Memory runs out in the control group of a rank or of an agent: what the others see."""

import time

import limits
from faults import Fault, Outcome, check_seconds, expect
from rank_faults import place_of, told_by

MIB = 1 << 20


def rank_over_limit(scene, layout, fault):
    """The kernel kills the rank, which looks like SIGKILL."""
    victim = 1
    with limits.MemoryLimit(64 * MIB) as limit:
        alone = lambda r: limit.wrap() if r == victim else ()
        with scene.job(layout, "greedy.py", [victim], wrap_rank=alone) as job:
            job.await_ready()
            start = time.monotonic()
            job.touch("go")
            status = job.status(victim)
            if status != -9 or limit.kills() == "0":
                raise AssertionError("the victim ended with %s, %s OOM kills" % (status, limit.kills()))
            others = [r for r in range(job.np) if r != victim]
            seconds, records = told_by(job, others, job.modified("last"))
            for r, record in records.items():
                for name, text in (("awaited", record["text"]), ("later", record["later"])):
                    expect(r"allreduce '%s'.*: .*rank %d \(.*node n%d.*\) (died|was lost): .*" % (
                        name, victim, place_of(victim, layout)), text, "rank %d" % r)
            if [job.status(r) for r in others] != [0] * len(others):
                raise AssertionError("statuses %s" % job.statuses())
            pause = scene.check_witness(start)
    outcome = Outcome({"others": seconds}, {"others": records[others[0]]["text"]}, pause)
    check_seconds(fault, outcome)
    return outcome


def no_memory_for_the_board(scene, layout, fault):
    """The control group of the agent, and so of the executor, has less memory than a board needs."""
    start = time.monotonic()
    with limits.MemoryLimit(10 * MIB) as limit:
        limit.take(scene.daemons.workers[-1])
        try:
            with scene.job(layout, "doomed.py", ["compute", 0]) as job:
                statuses = job.statuses(60)
                ended = time.monotonic()
                texts = [job.text("stderr", r).strip().splitlines()[-1].partition(": ")[2] for r in range(job.np)]
        finally:
            limit.release(scene.daemons.workers[-1])
    if statuses != [1] * job.np:
        raise AssertionError("statuses %s" % statuses)
    node = job.nodes - 1
    for r, text in enumerate(texts):
        expect(r"the agent at %s closed the connection before the job started; see its log" % scene.daemons.sockets[node]
               if place_of(r, layout) == node else
               r"(allreduce 'warm': )?the executor of node n%d \(.*\) with ranks .* was lost: .*" % node, text, "rank %d" % r)
    if "event=executor_ended job=%s" % job.job not in scene.daemons.log():
        raise AssertionError("the agent's log does not say how the executor ended")
    pause = scene.check_witness(start)
    with scene.job(layout, "doomed.py", ["compute", 0]) as following:
        following.touch("go")
        if following.statuses() != [0] * job.np:
            raise AssertionError("the next job ended with %s" % following.statuses())
    outcome = Outcome({"all": ended - start}, {"that node": texts[-1], "other nodes": texts[0]}, pause)
    if job.nodes == 1:
        del outcome.texts["other nodes"]
    check_seconds(fault, outcome)
    return outcome


FAULTS = [
    Fault(name="memory-rank", topic="memory", what="a rank exceeds the memory limit of its control group",
          sees="the kernel kills it; all others: as for SIGKILL", layouts=("1x4", "2x2"), run=rank_over_limit,
          bound=1.0),
    Fault(name="memory-board", topic="memory", what="an agent's control group has no memory for the board of a job",
          sees="all ranks: an error; the agent's log says that the kernel has killed the executor; the next job runs", layouts=("1x4", "2x2"), run=no_memory_for_the_board, bound=10.0),
]
