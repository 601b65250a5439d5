import torch.nn as nn
from lightning.pytorch import LightningModule, Trainer
from torchmetrics import JaccardIndex


class Segmenter(LightningModule):
    def __init__(self):
        super().__init__()
        self.iou = nn.ModuleDict(
            {
                "val": JaccardIndex(task="multiclass", num_classes=19),
                "test": JaccardIndex(task="multiclass", num_classes=19),
            }
        )

    def validation_step(self, batch, batch_idx):
        image, mask = batch
        self.log("val/iou", self.iou["val"](self(image), mask))  # expect: DL204 update the metric

    def test_step(self, batch, batch_idx):
        image, mask = batch
        iou = self.iou["test"](self(image), mask)
        self.log("test/iou", iou)  # expect: DL204 update the metric object and log the object


Trainer(devices=4, strategy="ddp").fit(Segmenter())
