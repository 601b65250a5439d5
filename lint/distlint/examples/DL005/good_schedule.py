from lightning.pytorch import LightningModule
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR


class Model(LightningModule):
    def configure_optimizers(self):
        optimizer = AdamW(self.parameters())
        return [optimizer], [LambdaLR(optimizer, lambda step: 1 / (step + 1))]
