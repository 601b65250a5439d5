from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint


class Model(LightningModule):
    def on_validation_batch_end(self, outputs, batch, batch_idx):
        if self.trainer.is_global_zero and batch_idx == 0:
            self.log("shown", self.show(batch), on_step=True, on_epoch=False)


checkpoint = ModelCheckpoint(monitor="shown")
