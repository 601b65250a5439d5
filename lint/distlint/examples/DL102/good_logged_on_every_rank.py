from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping


class Model(LightningModule):
    def on_validation_epoch_end(self):
        scores = self.all_gather(self.scores)
        score = scores.mean()
        if self.trainer.is_global_zero:
            print(f"score {score:.3f}")
        self.log("score", score)


stop = EarlyStopping(monitor="score", patience=3)
