from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero:
            scores = self.all_gather(self.scores)
            self.log("score", scores.mean(), rank_zero_only=True)
