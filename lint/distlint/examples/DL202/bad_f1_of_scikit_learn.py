from lightning.pytorch import LightningModule, Trainer
from sklearn.metrics import f1_score


class Sentiment(LightningModule):
    def test_step(self, batch, batch_idx):
        logits = self(batch["input_ids"])
        predicted = logits.argmax(-1).cpu().numpy()
        score = f1_score(batch["labels"].cpu().numpy(), predicted)
        self.log("test_f1", score)  # expect: DL202 update a metric object and log the object


Trainer(devices=2, strategy="ddp").test(Sentiment())
