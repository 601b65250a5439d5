from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        self.log("score", scores.mean(), rank_zero_only=True)
        if self.trainer.is_global_zero:
            self.log("spread", scores.std(), rank_zero_only=True)


trainer = Trainer(devices=4, strategy="ddp", callbacks=[ModelCheckpoint(monitor="loss")])
