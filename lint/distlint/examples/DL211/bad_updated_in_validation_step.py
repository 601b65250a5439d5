from pytorch_lightning import LightningModule, Trainer
from torchmetrics import Accuracy


class Classifier(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.accuracy = Accuracy(task="multiclass", num_classes=10)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.accuracy.update(self.net(x), y)  # expect: DL211 under dp this updates a replica
        self.log("val_accuracy", self.accuracy)


trainer = Trainer(devices=2, accelerator="gpu", strategy="dp")
