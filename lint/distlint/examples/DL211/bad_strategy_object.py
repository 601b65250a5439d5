from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.strategies import DataParallelStrategy
from torchmetrics.text import WordErrorRate


class Speech(LightningModule):
    def __init__(self, net, decoder):
        super().__init__()
        self.net, self.decoder = net, decoder
        self.wer = WordErrorRate()

    def validation_step(self, batch, batch_idx):
        texts = self.decoder(self.net(batch["audio"]))
        self.wer(texts, batch["text"])  # expect: DL211 under dp this updates a replica


def main(net, decoder):
    Trainer(devices=2, strategy=DataParallelStrategy()).validate(Speech(net, decoder))
