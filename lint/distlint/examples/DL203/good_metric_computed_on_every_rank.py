import torchmetrics
from lightning.pytorch import LightningModule


class Tagger(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.accuracy = torchmetrics.Accuracy(task="binary")

    def validation_step(self, batch, batch_idx):
        self.accuracy.update(self.net(batch["x"]), batch["y"])

    def on_validation_epoch_end(self):
        accuracy = self.accuracy.compute()
        if self.trainer.is_global_zero:
            self.log("val/accuracy", accuracy, rank_zero_only=True)
        self.accuracy.reset()
