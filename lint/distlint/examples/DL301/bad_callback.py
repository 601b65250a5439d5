from lightning.pytorch import Callback


class Keep(Callback):
    def __init__(self):
        self.predictions = []

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.predictions.append(outputs)  # expect: DL301 self.predictions grows in each validation

    def on_validation_epoch_end(self, trainer, pl_module):
        print(len(self.predictions), "batches predicted")
