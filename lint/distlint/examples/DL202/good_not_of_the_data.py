import time

from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def on_validation_epoch_start(self):
        self.started = time.time()

    def on_validation_epoch_end(self):
        self.log("epoch", float(self.current_epoch))
        self.log("temperature", self.temperature.exp())
        self.log("validation_seconds", time.time() - self.started)


Trainer(devices=4, strategy="ddp").fit(Model())
