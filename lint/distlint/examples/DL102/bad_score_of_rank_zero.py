from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        if self.trainer.is_global_zero:
            self.log("score", scores.mean())  # expect: DL102 a callback monitors this name, but


trainer = Trainer(devices=4, strategy="ddp", callbacks=[ModelCheckpoint(monitor="score")])
