from lightning.pytorch import LightningModule


class Segmenter(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        image, mask = batch
        found = self.net(image) > 0
        tp = (found & mask).sum()
        fp = (found & ~mask).sum()
        fn = (~found & mask).sum()
        precision = tp / (tp + fp + 1e-8)
        recall = tp / (tp + fn + 1e-8)
        self.log("val_precision", precision, sync_dist=True)  # expect: DL201 ratio of counts
        f1 = 2 * precision * recall / (precision + recall)
        self.log("val_f1", f1, sync_dist=True)  # expect: DL201 ratio of counts
