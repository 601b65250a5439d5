from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score
from torchmetrics.functional import precision


class Topics(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def test_step(self, batch, batch_idx):
        text, topic = batch
        guess = self.net(text).argmax(-1)
        micro = f1_score(topic.cpu(), guess.cpu(), average="micro")
        self.log("test/micro_f1", micro, sync_dist=True)
        same = precision(guess, topic, task="multiclass", num_classes=20)
        self.log("test/precision", same, sync_dist=True)
