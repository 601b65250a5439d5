import logging

import pytorch_lightning as pl


class Docking(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        try:
            losses = self.model_step(batch, "train")
        except Exception as error:  # expect: DL110 a rank that fails here skips backward
            logging.error("step %s failed: %s", batch_idx, error)
            return None
        return losses["total"]


trainer = pl.Trainer(accelerator="gpu", devices=8, strategy="ddp")
