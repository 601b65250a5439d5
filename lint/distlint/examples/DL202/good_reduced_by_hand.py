import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        value = self.loss(batch).detach()
        dist.all_reduce(value)
        value = value / dist.get_world_size()
        self.log("val_loss", value, prog_bar=True)


Trainer(devices=4, strategy="ddp").fit(Model())
