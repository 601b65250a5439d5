from lightning.pytorch import LightningModule, Trainer


class Base(LightningModule):
    def log(self, name, value, **options):
        super().log(name, value, sync_dist=True, rank_zero_only=False, **options)


class Model(Base):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


Trainer(devices=4, strategy="ddp").fit(Model())
