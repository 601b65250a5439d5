from lightning import LightningModule, Trainer
from torchmetrics import Precision, Recall


class Detector(LightningModule):
    def __init__(self):
        super().__init__()
        self.precision = Precision(task="binary")
        self.recall = Recall(task="binary")

    def test_step(self, batch, batch_idx):
        images, labels = batch
        scores = self(images)
        self.log_dict(  # expect: DL204 update the metric object and log the object itself
            {
                "test/precision": self.precision(scores, labels),
                "test/recall": self.recall(scores, labels),
            }
        )


Trainer(devices=-1, strategy="ddp").test(Detector())
