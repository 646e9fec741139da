"""Training libraries on the backend maypole and on Gloo, in the same ranks: the same losses and weights, as programs.py.

    libraries.py NAME ...

$PROGRAMS_DEVICE and $REFERENCE are those of programs.py; with a GPU, each rank is the only one of its node.

Lightning, Fabric and DeepSpeed make the process group from an option. Accelerate, and with it Hugging Face's Trainer,
would make a Gloo group for CPUs whatever its options (accelerate/state.py, _prepare_backend), but uses an existing one.
"""

import functools
import os
import socket
import sys
import tempfile

import programs
import rank as test
import torch
import torch.distributed as dist
from training import DEVICE, STEPS, batches, model, sgd, weights

import maypole.torch.distributed  # noqa: F401 - torch before 2.15 does not find the backend itself

ACCELERATOR = {"cpu": "cpu", "cuda": "gpu"}[DEVICE.type]
RANK, SIZE, LOCAL_SIZE = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))


class Rows(torch.utils.data.Dataset):
    """All batches of a job, in rows; a sampler gives each rank its part."""

    def __init__(self):
        x, y = zip(*batches(0, STEPS, 8 * SIZE))
        self._x, self._y = torch.cat(x), torch.cat(y)

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        return self._x[index], self._y[index]


def loader():
    return torch.utils.data.DataLoader(Rows(), batch_size=8)


# --- Lightning ----------------------------------------------------------------


def lightning(backend):
    import lightning.pytorch as pl
    import torchmetrics
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()
            self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)
            self.seen = []

        def training_step(self, batch, index):
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True)
            self.seen.append(loss.detach())
            return loss

        def validation_step(self, batch, index):
            self.accuracy(self.net(batch[0]), batch[1])
            self.log("accuracy", self.accuracy, on_epoch=True)

        def configure_optimizers(self):
            return sgd(self.parameters())

    module = Module()
    trainer = pl.Trainer(
        accelerator=ACCELERATOR, devices=LOCAL_SIZE, num_nodes=SIZE // LOCAL_SIZE, max_epochs=2, logger=False,
        strategy=DDPStrategy(process_group_backend=backend), plugins=[TorchElasticEnvironment()],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, loader(), loader())
    assert dist.get_backend() == backend
    assert len(module.seen) == 2 * STEPS
    return module.seen + weights(module) + [trainer.callback_metrics[name] for name in ("loss", "accuracy")]


def fabric(backend):
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.environments import TorchElasticEnvironment
    from lightning.fabric.strategies import DDPStrategy

    fabric = Fabric(accelerator=ACCELERATOR, devices=LOCAL_SIZE, num_nodes=SIZE // LOCAL_SIZE,
                    strategy=DDPStrategy(process_group_backend=backend), plugins=[TorchElasticEnvironment()])
    fabric.launch()
    assert dist.get_backend() == backend
    net = model()
    net, optimizer = fabric.setup(net, sgd(net.parameters()))
    losses = []
    for x, y in fabric.setup_dataloaders(loader()):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses + weights(net) + [fabric.all_reduce(losses[-1]), fabric.all_gather(losses[-1])]


# --- Hugging Face -------------------------------------------------------------


def forget_accelerators_state():
    """Accelerate keeps the process group that it found first for the whole process."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def accelerate(backend):
    from accelerate import Accelerator

    forget_accelerators_state()
    dist.init_process_group(backend)
    accelerator = Accelerator(cpu=DEVICE.type == "cpu", gradient_accumulation_steps=2)
    assert accelerator.num_processes == SIZE and dist.get_backend() == backend
    net = model()
    net, optimizer, rows = accelerator.prepare(net, sgd(net.parameters()), loader())
    losses = []
    for x, y in rows:
        with accelerator.accumulate(net):
            loss = torch.nn.functional.cross_entropy(net(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    gathered = accelerator.gather_for_metrics(torch.stack(losses))
    return losses + weights(net) + [gathered, accelerator.reduce(losses[-1], "mean")]


def trainer(backend):
    """Hugging Face's Trainer with a small GPT-2, made from its configuration."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    forget_accelerators_state()
    dist.init_process_group(backend)
    torch.manual_seed(0)
    net = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
    tokens = torch.randint(0, 64, (16 * SIZE, 16), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(dir=test.DIR), use_cpu=DEVICE.type == "cpu", per_device_train_batch_size=4,
        num_train_epochs=2, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=0,
        optim="sgd", learning_rate=0.1)
    run = Trainer(net, arguments, train_dataset=rows, eval_dataset=rows)
    run.train()
    assert dist.get_backend() == backend
    evaluated = run.evaluate()["eval_loss"]
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert len(losses) == 8
    return [torch.tensor(losses + [evaluated])] + weights(net)


# --- Others -------------------------------------------------------------------


def torchmetrics(backend):
    """Metrics whose states are reduced, gathered, and gathered with a size of its own on each rank."""
    from torchmetrics import CatMetric, MeanMetric
    from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

    dist.init_process_group(backend)
    generator = torch.Generator().manual_seed(RANK)
    metrics = [m.to(DEVICE) for m in (MulticlassAccuracy(10), MulticlassAUROC(10), MeanMetric(), CatMetric())]
    for _ in range(2 + RANK):
        scores = torch.rand(8, 10, generator=generator).softmax(1).to(DEVICE)
        labels = torch.randint(0, 10, (8,), generator=generator).to(DEVICE)
        for metric in metrics:
            of_classes = isinstance(metric, (MulticlassAccuracy, MulticlassAUROC))
            metric.update(*((scores, labels) if of_classes else (scores.sum(1),)))
    return [metric.compute() for metric in metrics]


def deepspeed(backend, stage):
    """stage: of ZeRO; 0: none."""
    import deepspeed

    # An allreduce of its own for inference on one machine, which would be compiled here, for minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=backend)
    assert dist.get_backend() == backend
    net = model()
    engine, optimizer, _, _ = deepspeed.initialize(
        model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01), config={
            "train_micro_batch_size_per_gpu": 8, "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": stage}})
    losses = []
    for x, y in batches(RANK, rows=8):
        loss = torch.nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    with deepspeed.zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
        values = losses + weights(net)
    engine.destroy()
    deepspeed.comm.destroy_process_group()
    deepspeed.comm.comm.cdb = None  # which keeps the backend of a process group that is gone
    return values


LIBRARIES = {
    "Lightning": lightning,
    "Fabric": fabric,
    "Accelerate": accelerate,
    "Hugging Face Trainer": trainer,
    "torchmetrics": torchmetrics,
    "DeepSpeed": lambda backend: deepspeed(backend, 0),
    "DeepSpeed, ZeRO 1": lambda backend: deepspeed(backend, 1),
    "DeepSpeed, ZeRO 2": lambda backend: deepspeed(backend, 2),
    "DeepSpeed, ZeRO 3": lambda backend: deepspeed(backend, 3),
}


def agree_on_port(name):
    """A new MASTER_PORT for each process group, so that no rank finds the store of the one before."""
    if RANK == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            test._write(name, str(free.getsockname()[1]))
    test.await_file(name)
    with open(os.path.join(test.DIR, name), encoding="utf-8") as f:
        os.environ["MASTER_PORT"] = f.read()


def main():
    torch.set_num_threads(1)
    results = {"maypole": {}, programs.REFERENCE: {}}
    for number, name in enumerate(sys.argv[1:]):
        for backend, of_backend in results.items():
            agree_on_port(f"port.{number}.{backend}")
            programs.run(backend, {name: functools.partial(LIBRARIES[name], backend)}, [name], of_backend)
            if dist.is_initialized():
                dist.destroy_process_group()
    if not programs.compare(sys.argv[1:], *results.values(), RANK, SIZE):
        sys.exit(1)


if __name__ == "__main__":
    main()
