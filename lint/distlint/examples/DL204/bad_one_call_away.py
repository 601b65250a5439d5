from lightning.pytorch import LightningModule, Trainer
from torchmetrics import SpearmanCorrCoef


class Affinity(LightningModule):
    def __init__(self):
        super().__init__()
        self.spearman = SpearmanCorrCoef()

    def _evaluate(self, batch, stage):
        sequence, affinity = batch
        rho = self.spearman(self(sequence), affinity)
        self.log(f"{stage}/spearman", rho)  # expect: DL204 update the metric object and log the

    def validation_step(self, batch, batch_idx):
        self._evaluate(batch, "val")

    def test_step(self, batch, batch_idx):
        self._evaluate(batch, "test")


Trainer(accelerator="gpu", devices=2).fit(Affinity())
