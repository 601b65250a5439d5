from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint


class General(LightningModule):
    def on_validation_epoch_end(self):
        log = self.gather_log(self.kept, self.trainer.world_size)
        means = self.means_of(log)
        if self.trainer.is_global_zero:
            print(means)
            self.log_dict(means, batch_size=1)  # expect: DL102 only rank 0 logs this, and a
        self.kept.clear()


checkpoint = ModelCheckpoint(monitor="val_perplexity", save_top_k=3)
