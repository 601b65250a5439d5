from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import grad_norm


class Model(LightningModule):
    def on_before_optimizer_step(self, optimizer):
        if self.global_rank == 0:
            norms = grad_norm(self, norm_type=2)
            self.log_dict(norms)


checkpoint = ModelCheckpoint(monitor="val/loss")
