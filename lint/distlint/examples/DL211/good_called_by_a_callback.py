from pytorch_lightning import Callback, Trainer
from torchmetrics import Accuracy


class Watch(Callback):
    def __init__(self):
        self.accuracy = Accuracy(task="binary")

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.accuracy.update(outputs["logits"], batch["y"])


trainer = Trainer(devices=2, strategy="dp", callbacks=[Watch()])
