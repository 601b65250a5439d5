from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self, net, criterion):
        super().__init__()
        self.net, self.criterion = net, criterion

    def validation_step(self, batch, batch_idx):
        loss = self.criterion(self.net(batch["x"]), batch["y"])
        self.log("val_loss", loss, rank_zero_only=False, sync_dist=True)
