import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint


class Tagger(L.LightningModule):
    def on_validation_epoch_end(self, prefix=""):
        targets, outputs = self.all_gather(self.targets), self.all_gather(self.outputs)
        if self.trainer.is_global_zero:
            logs = {prefix + "precision": self.precision(targets, outputs), "step": self.step}
            self.log_dict(logs, sync_dist=False)  # expect: DL102 a callback monitors this name


def callbacks():
    return [ModelCheckpoint(monitor="precision", mode="max", save_top_k=1)]
