from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        if self.trainer.is_global_zero:
            self.log("score", scores.mean())
            self.log("spread", scores.std(), sync_dist=True)
            self.log_dict({"low": scores.min(), "high": scores.max()}, rank_zero_only=False)
