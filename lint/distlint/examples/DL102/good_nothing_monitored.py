from lightning.pytorch import LightningModule


class Model(LightningModule):
    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            self.log("seconds", self.timer.seconds)
            self.log_dict(self.timer.parts)
