from lightning.pytorch import LightningModule


class Classifier(LightningModule):
    def __init__(self, net, loss):
        super().__init__()
        self.net, self.loss = net, loss

    def validation_step(self, batch, batch_idx):
        loss = self.loss(self.net(batch["x"]), batch["y"])
        self.log("val_loss", self.all_gather(loss).mean(), rank_zero_only=True)
