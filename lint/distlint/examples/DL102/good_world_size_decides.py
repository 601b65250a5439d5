from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(LightningModule):
    def on_validation_epoch_end(self):
        score = self.scorer.score()
        if self.trainer.world_size > 1:
            self.log("score", self.all_gather(score).mean())
        else:
            self.log("score", score)


checkpoint = ModelCheckpoint(monitor="score")
