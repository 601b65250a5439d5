from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score


class Sentiment(LightningModule):
    def __init__(self, encoder, head):
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, tokens):
        return self.head(self.encoder(tokens))

    def validation_step(self, batch, batch_idx):
        tokens, labels = batch
        predicted = self(tokens).argmax(-1)
        f1 = f1_score(labels.cpu(), predicted.cpu(), average="macro")
        self.log("val_f1", f1, prog_bar=True, sync_dist=True)  # expect: DL201 mean over ranks of f1
