import torch
import pytorch_lightning as pl


class Matcher(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        return {"error": self.net(batch["pair"]).sub(batch["pose"]).norm(dim=-1)}

    def validation_epoch_end(self, outputs):
        error = torch.cat([each["error"] for each in outputs]).mean()
        self.log("val_error", error, prog_bar=True, rank_zero_only=True)  # expect: DL203 rank 0's
