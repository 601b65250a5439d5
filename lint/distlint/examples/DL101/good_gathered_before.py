from lightning.pytorch import LightningModule


class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        self.scores = None
        if self.trainer.is_global_zero:
            print("best", scores.max().item())
            self.log("score", scores.mean(), rank_zero_only=True)
