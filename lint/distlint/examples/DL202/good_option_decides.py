from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def __init__(self, distributed):
        super().__init__()
        self.distributed = distributed

    def validation_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("val_loss", loss, sync_dist=self.distributed)
        self.log("val_loss_again", loss, sync_dist=self.trainer.world_size > 1)


Trainer(devices=4, strategy="ddp").fit(Model(True))
