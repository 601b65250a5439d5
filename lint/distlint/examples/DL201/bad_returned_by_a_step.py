import numpy as np
import pytorch_lightning as pl
from sklearn.metrics import accuracy_score, matthews_corrcoef


class Acceptability(pl.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def validation_step(self, batch, batch_idx):
        logits = self.model(**batch).logits
        wanted, guessed = batch["labels"].cpu(), logits.argmax(-1).cpu()
        return {
            "accuracy": accuracy_score(wanted, guessed),
            "mcc": matthews_corrcoef(wanted, guessed),
        }

    def validation_epoch_end(self, outputs):
        accuracy = np.mean([x["accuracy"] for x in outputs])
        mcc = np.mean([x["mcc"] for x in outputs])
        self.log("val_accuracy", accuracy, sync_dist=True)
        self.log("val_mcc", mcc, sync_dist=True)  # expect: DL201 matthews_corrcoef
