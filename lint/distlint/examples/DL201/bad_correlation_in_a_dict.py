import lightning.pytorch as pl
import torch
from torchmetrics.functional import mean_absolute_error, pearson_corrcoef


class Affinity(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.step_outputs = []

    def test_step(self, batch, batch_idx):
        self.step_outputs.append({"predicted": self.net(batch["x"]), "wanted": batch["y"]})

    def on_test_epoch_end(self):
        predicted = torch.cat([each["predicted"] for each in self.step_outputs])
        wanted = torch.cat([each["wanted"] for each in self.step_outputs])
        metrics = {
            "test/mae": mean_absolute_error(predicted, wanted),
            "test/pearson": pearson_corrcoef(predicted, wanted),
        }
        self.log_dict(metrics, sync_dist=True)  # expect: DL201 pearson_corrcoef
        self.step_outputs.clear()
