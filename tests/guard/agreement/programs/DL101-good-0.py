from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        if self.trainer.is_global_zero:
            self.log("score", scores.mean(), rank_zero_only=True)
