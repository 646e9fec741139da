"""Output goes to a full disk: the training continues."""

import os
import time

from faults import Fault, Outcome, expect

STEPS, LINES = 40, 50
ROOM = 65536  # of the disk; each rank writes three times as much

# In its own mount namespace, so the kernel removes it with the last process in it.
SMALL_DISK = ["unshare", "--mount", "/bin/sh", "-c",
              'mkdir -p "$0" && mount -t tmpfs -o size=%d none "$0" && exec "$@"' % ROOM]


def check(job, status, want_lines):
    if status != (0 if want_lines else 1):
        raise AssertionError("maypolerun ended with %s" % status)
    for record in job.records():
        if record["total"] != STEPS * job.np * (job.np + 1) / 2:
            raise AssertionError("wrong sums: %s" % record)
    if want_lines:  # nothing is lost on the screen
        shown = sum("<stdout>:step " in line for line in job.stdout().splitlines())
        if shown != job.np * STEPS * LINES:
            raise AssertionError("%d lines were shown, expected %d" % (shown, job.np * STEPS * LINES))


def output_files(scene, layout, fault):
    start = time.monotonic()
    disk = os.path.join(scene.daemons.dir, "disk")
    logs = os.path.join(disk, "logs")
    with scene.launch(layout, "chatty.py", [STEPS, LINES], prefix=SMALL_DISK + [disk],
                      launcher_args=["--output-filename", logs]) as job:
        check(job, job.wait(60), True)
        said = [line for line in job.stderr().splitlines() if line.startswith("maypolerun: ")]
        expect(r"maypolerun: cannot write %s/rank\.\d/stdout: No space left on device; nothing more goes there, and the "
               "job goes on" % logs, said[0], "the user")
        expect("maypolerun: %d files in %s end early: they could not be written" % (job.np, logs), said[1], "the user")
        if len(said) != 2:
            raise AssertionError("maypolerun said %s" % said)
        pause = scene.check_witness(start)
    return Outcome({}, {"maypolerun": "; then ".join(line.partition(": ")[2] for line in said)}, pause)


def own_output(scene, layout, fault):
    start = time.monotonic()
    with scene.launch(layout, "chatty.py", [STEPS, LINES],
                      prefix=["/bin/sh", "-c", 'exec "$0" "$@" >/dev/full 2>&1']) as job:
        check(job, job.wait(60), False)
        pause = scene.check_witness(start)
    return Outcome({}, {"all": None}, pause)


def daemon_logs(scene, layout, fault):
    """The scene's daemons write to a full disk; a rank dies, so there is much to log."""
    start = time.monotonic()
    with scene.job(layout, "doomed.py", ["compute", 0, "exit3"]) as job:
        job.await_ready()
        os.kill(job.pid(0), 9)
        records = [job.await_record(r) for r in range(1, job.np)]
        job.touch("over")
        if not all("rank 0 " in record["text"] for record in records):
            raise AssertionError("ranks were told %s" % records)
        pause = scene.check_witness(start)
    return Outcome({}, {"all": None}, pause)


FAULTS = [
    Fault(name="disk-output-files", topic="disk", what="the disk of maypolerun's --output-filename is full",
          sees="no error: training continues; one line when it happens, one at the end", layouts=("1x4", "2x2"),
          run=output_files, bound=1.0, times=5),
    Fault(name="disk-own-output", topic="disk", what="maypolerun's own output goes to a full disk",
          sees="no error: training continues; the exit status is 1, because lines are missing", layouts=("1x4", "2x2"),
          run=own_output, bound=1.0, times=5,
          long_layouts=("1x4",)),
    Fault(name="disk-daemon-logs", topic="disk", what="the logs of coordinator and agents go to a full disk, and a rank dies",
          sees="the same as with working logs: its job gets an error, the other continues", layouts=("1x4", "2x2"), run=daemon_logs, bound=1.0,
          times=5, scene="full logs"),
]
