import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(LightningModule):
    def on_validation_epoch_end(self):
        holder = [torch.zeros(())]
        if self.trainer.is_global_zero:
            holder[0] = self.score_file("predictions.json")
        score = self.trainer.strategy.broadcast(holder[0], src=0)
        if self.trainer.is_global_zero:
            self.log("score", score, batch_size=1)
        else:
            self.log("score", score, batch_size=1)


checkpoint = ModelCheckpoint(monitor="score", mode="max")
