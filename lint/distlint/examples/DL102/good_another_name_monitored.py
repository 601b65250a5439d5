from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(LightningModule):
    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            self.log("seconds", self.timer.seconds)
            self.log(f"memory/{self.device.index}", self.timer.memory)


checkpoint = ModelCheckpoint(monitor="val_loss")
