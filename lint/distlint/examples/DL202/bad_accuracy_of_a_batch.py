import pytorch_lightning as pl


class Tagger(pl.LightningModule):
    def validation_step(self, batch, batch_idx):
        tokens, tags = batch
        right = (self(tokens).argmax(-1) == tags).float().mean()
        self.log("val/accuracy", right, on_step=False, on_epoch=True)  # expect: DL202 rank 0's

    def test_step(self, batch, batch_idx):
        tokens, tags = batch
        right = (self(tokens).argmax(-1) == tags).float().mean()
        self.log("test/accuracy", right)  # expect: DL202 this value covers rank 0's share of the data


if __name__ == "__main__":
    pl.Trainer(accelerator="gpu", devices=-1).fit(Tagger())
