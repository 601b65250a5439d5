import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        for name in batch:
            self.log(name, batch[name].mean(), sync_dist=True)
        for one in batch["image"]:
            self.all_gather(one)
        most = torch.tensor(len(torch.unique(batch["y"])))
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        for _ in range(int(most.item())):
            self.all_gather(batch["y"])

def train(model, loader, accelerator, prompts):
    for batch in loader:
        loss = model(batch).detach()
        dist.all_reduce(loss)
        while loss > 0.1:
            loss = reduce_mean(model(batch))
            dist.barrier()
    with accelerator.split_between_processes(prompts, apply_padding=True) as mine:
        for prompt in mine:
            accelerator.gather(model(prompt))
