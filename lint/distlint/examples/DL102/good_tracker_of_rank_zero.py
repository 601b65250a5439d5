import wandb
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(LightningModule):
    def on_validation_epoch_end(self):
        score = self.all_gather(self.scores).mean()
        self.log("score", score)
        if self.trainer.is_global_zero:
            wandb.log({"score": score})
            self.logger.experiment.log({"images": self.images})


checkpoint = ModelCheckpoint(monitor="score")
