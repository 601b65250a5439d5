import torch
import torchmetrics
import pytorch_lightning as pl


class Slides(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.auroc = torchmetrics.AUROC(task="binary")

    def validation_epoch_end(self, outputs):
        probabilities = torch.cat([each["probability"] for each in outputs])
        labels = torch.cat([each["label"] for each in outputs])
        self.log("auc", self.auroc(probabilities, labels))  # expect: DL204 update the metric object


pl.Trainer(gpus=4, accelerator="ddp").fit(Slides())
