from lightning.pytorch import LightningModule

from training.communication import average_over_ranks


class Model(LightningModule):
    def __init__(self, net, criterion):
        super().__init__()
        self.net, self.criterion = net, criterion

    def test_step(self, batch, batch_idx):
        loss = average_over_ranks(self.criterion(self.net(batch["x"]), batch["y"]))
        self.log("test_loss", loss, rank_zero_only=True)
