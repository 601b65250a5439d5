from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_only
from torchmetrics import MeanMetric

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.metric = MeanMetric(sync_on_compute=False)

    @rank_zero_only
    def validation_step(self, batch, batch_idx):
        self.metric.update(self(batch))
        self.log("metric", self.metric.compute())
