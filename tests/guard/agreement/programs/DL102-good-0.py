from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        self.log("score", scores.mean())
        if self.trainer.is_global_zero:
            self.log("spread", scores.std(), rank_zero_only=True)
            print(self.log)
        if self.trainer.world_size > 1:
            self.log("mean", scores.mean())
