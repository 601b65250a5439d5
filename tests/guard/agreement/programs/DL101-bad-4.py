from lightning.pytorch.utilities import rank_zero_only
from torchmetrics import Accuracy

class Report:
    def __init__(self):
        self.accuracy = Accuracy(task="binary")

    @rank_zero_only
    def print(self):
        print(self.accuracy.compute())
