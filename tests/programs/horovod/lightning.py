"""PyTorch Lightning with Trainer(strategy="horovod"); `apart` is the difference from one process on the whole batches.

Lightning multiplies the learning rate by the number of ranks.
"""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F

import horovod.torch as hvd
import rank

ROWS, BATCH, EPOCHS = 48, 4, 2


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return self.x[i], self.x[i].sum(0, keepdim=True).sin()


class Model(pl.LightningModule):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
        self.losses = []

    def training_step(self, batch, _):
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.8)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.net.parameters()])


def of_one_process(size):
    model = Model(0)
    optimizer = model.configure_optimizers()
    optimizer.param_groups[0]["lr"] *= size
    data = Data()
    for _ in range(EPOCHS):
        # Rank r has the rows r, r + size, ...: a step of all ranks has neighbours.
        for i in range(0, ROWS, BATCH * size):
            x, y = data[slice(i, i + BATCH * size)][0], data.x[i:i + BATCH * size].sum(1, keepdim=True).sin()
            optimizer.zero_grad()
            F.mse_loss(model.net(x), y).backward()
            optimizer.step()
    return weights(model)


def main():
    torch.set_num_threads(1)
    hvd.init()
    model = Model(hvd.rank())  # rank 0's counts
    trainer = pl.Trainer(strategy="horovod", accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False,
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                         replace_sampler_ddp=False)
    sampler = torch.utils.data.DistributedSampler(Data(), hvd.size(), hvd.rank(), shuffle=False)
    trainer.fit(model, torch.utils.data.DataLoader(Data(), batch_size=BATCH, sampler=sampler))
    mine, strategy = weights(model), trainer.strategy
    mean = strategy.reduce(torch.tensor([1.0 + hvd.rank()]))
    gathered = strategy.all_gather(torch.tensor([10 * hvd.rank()]))
    rank.record(size=trainer.world_size, losses=model.losses, mean=mean.tolist(), gathered=gathered.tolist(),
                sum=float(mine.sum()), apart=float((mine - of_one_process(hvd.size())).abs().max()))


main()
