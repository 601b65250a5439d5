from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping


class Fid(Callback):
    def on_validation_end(self, trainer, pl_module):
        self.features.clear()

    def on_validation_epoch_end(self, trainer, pl_module):
        features = pl_module.all_gather(self.features)
        if trainer.is_global_zero:
            pl_module.log("fid", self.distance(features))  # expect: DL102 but only rank 0 logs it


trainer = Trainer(strategy="ddp", devices=2, callbacks=[Fid(), EarlyStopping(monitor="fid")])
