from torch import nn
from torchmetrics import Accuracy


class Evaluation:
    def __init__(self, net):
        self.net = nn.DataParallel(net)
        self.accuracy = Accuracy(task="binary")

    def test_step(self, batch):
        self.accuracy.update(self.net(batch["x"]), batch["y"])

    def run(self, loader, strategy="dp"):
        for batch in loader:
            self.test_step(batch)
        return self.accuracy.compute()
