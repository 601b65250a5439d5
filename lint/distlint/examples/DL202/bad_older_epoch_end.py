import torch
import pytorch_lightning as pl


class Ranker(pl.LightningModule):
    def validation_step(self, batch, batch_idx):
        return {"loss": self.loss(batch), "hits": self.hits(batch)}

    def validation_epoch_end(self, outputs):
        loss = torch.stack([each["loss"] for each in outputs]).mean()
        hits = torch.cat([each["hits"] for each in outputs]).float().mean()
        self.log("val_loss", loss)  # expect: DL202 this value covers rank 0's share of the data alone
        self.log("val_hits", hits, prog_bar=True)  # expect: DL202 rank 0's share of the data


pl.Trainer(gpus=4, strategy="ddp").fit(Ranker())
