from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def __init__(self, make_metric):
        super().__init__()
        self.score = make_metric()

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.score.update(logits, labels)
        self.log("score", self.score, sync_dist=True)
        return self.loss(logits, labels)


Trainer(devices=4, strategy="ddp").fit(Model())
