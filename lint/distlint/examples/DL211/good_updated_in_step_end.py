from pytorch_lightning import LightningModule, Trainer
from torchmetrics import Accuracy


class Model(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.accuracy = Accuracy(task="binary")

    def validation_step(self, batch, batch_idx):
        return {"logits": self.net(batch["x"]), "labels": batch["y"]}

    def validation_step_end(self, outputs):
        self.accuracy.update(outputs["logits"], outputs["labels"])
        self.log("val_accuracy", self.accuracy)


trainer = Trainer(devices=2, accelerator="gpu", strategy="dp")
