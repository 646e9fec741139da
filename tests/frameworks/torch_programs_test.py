"""Real programs and training libraries on init_process_group("maypole"): they reach the losses and weights of Gloo.

A job runs many programs, each on both backends in the same ranks (tests/programs/torch_distributed/programs.py,
libraries.py); each program is a case here. --long runs all of them, on 2 and 4 ranks, one node and two.
"""

import functools
import os
import shutil
import sys
import tempfile
import unittest

import harness
import pypi_torch

DIRECTORY = tempfile.mkdtemp(prefix="mpp", dir="/tmp")
LONG = "--long" in sys.argv
SECONDS = 1500  # for a job

DATA_PARALLEL = (
    "DDP", "DDP, find_unused_parameters", "DDP, static_graph", "DDP, gradient_as_bucket_view", "DDP, small buckets",
    "DDP, no_sync", "DDP, BatchNorm", "DDP, fp16 hook", "DDP, bf16 hook", "DDP, PowerSGD hook", "DDP, join",
    "DDP, join, divided by the ranks that are left", "DDP, join, find_unused_parameters",
    "ZeroRedundancyOptimizer", "ZeroRedundancyOptimizer, join")
SHARDED = (
    "FSDP1", "FSDP1, SHARD_GRAD_OP", "FSDP1, HYBRID_SHARD", "FSDP1, mixed precision", "FSDP2",
    "FSDP2, reshard_after_forward=False", "HSDP", "tensor parallel", "sequence parallel", "tensor parallel and FSDP2")
PIPELINES = ("pipeline, GPipe", "pipeline, 1F1B", "pipeline, interleaved 1F1B")
COMPILED = ("torch.compile, functional collectives", "torch.compile, functional collectives, aot_eager",
            "torch.compile, DDP", "torch.compile, DDP, aot_eager", "torch.compile, FSDP2")
PLAIN = ("DDP, PowerSGD hook", "FSDP2", "torch.compile, DDP, aot_eager")
LIBRARIES = ("Lightning", "Fabric", "Accelerate", "Hugging Face Trainer", "torchmetrics")
DEEPSPEED = ("DeepSpeed", "DeepSpeed, ZeRO 1", "DeepSpeed, ZeRO 2", "DeepSpeed, ZeRO 3")
# Ranks and nodes.
LAYOUTS = ((2, 1), (4, 1), (4, 2))


@functools.lru_cache(None)
def environment(*more):
    """The interpreter of a venv with torch and these parts of pypi_torch."""
    return pypi_torch.environment(tempfile.mkdtemp(prefix="env", dir=DIRECTORY), *more)


@functools.lru_cache(None)
def run(program, names, np, nodes, *more, env=()):
    """(The names that were equal, what the job wrote); runs a job once."""
    path = os.path.join(harness.ROOT, "tests/programs/torch_distributed", program)
    # Without these, Inductor compiles in processes of its own, and Hugging Face's libraries ask the network.
    env = dict(env, TORCHINDUCTOR_COMPILE_THREADS="1", HF_HUB_OFFLINE="1", DS_ACCELERATOR="cpu")
    with harness.Job(np=np, nodes=nodes, command=[environment(*more), path, *names], env=env) as job:
        status = job.wait(SECONDS)
        out = job.stdout()
        written = "status %d\n%s\n%s" % (status, out[-20000:], job.stderr()[-8000:])
    (equal,) = [line.split("equal: ")[1] for line in out.splitlines() if "equal: " in line] or [""]
    return equal.split("; "), written, status


class ProgramsTest(unittest.TestCase):
    maxDiff = None

    def check(self, name, *job, **options):
        equal, written, status = run(*job, **options)
        if name not in equal:
            self.fail("%s is not Gloo's:\n%s" % (name, written))
        if equal == list(job[1]):
            self.assertEqual(status, 0, written)

    # The first steps with PowerSGD are those of DDP without a hook.
    def test_ddp_with_a_hook(self):
        self.check("DDP, PowerSGD hook", "programs.py", PLAIN, 2, 1)

    def test_fsdp2(self):
        self.check("FSDP2", "programs.py", PLAIN, 2, 1)

    def test_compiled_ddp(self):
        self.check("torch.compile, DDP, aot_eager", "programs.py", PLAIN, 2, 1)

    @unittest.skipUnless(LONG, "with --all")
    def test_checkpoints_of_jobs_of_other_sizes(self):
        for saving, loading in (((4, 2), (2, 1)), ((2, 1), (4, 2))):
            directory = tempfile.mkdtemp(dir=DIRECTORY)
            env = (("CHECKPOINTS", directory),)
            for name, (np, nodes) in (("checkpoint, save", saving), ("checkpoint, load", loading)):
                with self.subTest(name, np=np):
                    self.check(name, "programs.py", (name,), np, nodes, env=env)


def add_cases():
    """A test for each program and layout."""
    def add(name, program, names, np, nodes, *more):
        def test(self):
            self.check(name, program, names, np, nodes, *more)

        words = "".join(c if c.isalnum() else "_" for c in name.lower())
        setattr(ProgramsTest, "test_%s_%d_ranks_%d_nodes" % (words, np, nodes), test)

    for np, nodes in LAYOUTS:
        # Compiling takes a minute; what it compiles does not depend on the nodes.
        names = DATA_PARALLEL + SHARDED + PIPELINES + (COMPILED if (np, nodes) != (4, 1) else ())
        for name in names:
            add(name, "programs.py", names, np, nodes)
        for name in LIBRARIES:
            add(name, "libraries.py", LIBRARIES, np, nodes, pypi_torch.training_libraries)
        for name in DEEPSPEED:
            add(name, "libraries.py", DEEPSPEED, np, nodes, pypi_torch.deepspeed)


def setUpModule():
    unittest.addModuleCleanup(shutil.rmtree, DIRECTORY)
    os.chmod(DIRECTORY, 0o755)


if LONG:
    add_cases()

if __name__ == "__main__":
    unittest.main(argv=[arg for arg in sys.argv if arg != "--long"])
