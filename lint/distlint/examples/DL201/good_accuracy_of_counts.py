from lightning.pytorch import LightningModule


class Forgery(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def test_step(self, batch, batch_idx):
        x, y = batch
        guess = self.net(x) > 0
        tp = (guess & y).sum()
        tn = (~guess & ~y).sum()
        fp = (guess & ~y).sum()
        fn = (~guess & y).sum()
        self.log("test/accuracy", (tp + tn) / (tp + tn + fp + fn), sync_dist=True)
