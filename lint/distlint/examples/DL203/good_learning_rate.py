from lightning.pytorch import LightningModule


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def on_validation_epoch_end(self):
        rate = self.optimizers().param_groups[0]["lr"]
        self.log("rate", rate, rank_zero_only=True)
        self.log("epoch", float(self.current_epoch), rank_zero_only=True)
