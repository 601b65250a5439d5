from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities import rank_zero_only

class Report(Callback):
    @rank_zero_only
    def on_train_epoch_end(self, trainer, pl_module):
        pl_module.log("epoch", trainer.current_epoch, sync_dist=True)

class Model(LightningModule):
    def report(self):
        self.log("scale", self.scale)

    def on_train_epoch_end(self):
        if self.trainer.global_rank == 0:
            self.report()

    def on_test_epoch_end(self):
        if self.local_rank > 0:
            self.log("rest", self.rest)
