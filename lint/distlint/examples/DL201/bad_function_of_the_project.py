from lightning.pytorch import LightningModule

from evaluation import detection_scores


class Boxes(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def test_step(self, batch, batch_idx):
        images, targets = batch
        precision, recall, ap = detection_scores(self.net(images), targets)
        self.log("test/precision", precision, sync_dist=True)  # expect: DL201 precision
        self.log("test/recall", recall, sync_dist=True)  # expect: DL201 recall
        self.log("test/ap", ap, sync_dist=True)  # expect: DL201 mean over ranks of ap
