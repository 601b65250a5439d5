from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        for index, rate in enumerate(self.scheduler.get_last_lr()):
            self.log(f"lr/{index}", rate, prog_bar=True, sync_dist=True)  # expect: DL302 every rank
        return self.loss(batch)


Trainer(devices=4, strategy="ddp").fit(Model())
