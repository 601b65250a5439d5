import torch
from lightning.pytorch import LightningModule
from sklearn.metrics import accuracy_score, f1_score


class Tagger(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def scores(self, labels, guesses):
        return accuracy_score(labels, guesses), f1_score(labels, guesses)

    def validation_step(self, batch, batch_idx):
        accuracy, f1 = self.scores(batch["y"].cpu(), self.net(batch["x"]).argmax(-1).cpu())
        self.log("val_accuracy", torch.tensor(accuracy), sync_dist=True)
        self.print(f"f1 of this batch on this rank: {f1:.3f}")
