import pytorch_lightning as pl
from pytorch_lightning import LightningModule


class Enhancer(LightningModule):
    def enhance(self, noisy):
        spectrum = self.transform(noisy.cuda(non_blocking=True))  # expect: DL001 self.device
        return self.net(spectrum)

    def validation_step(self, batch, batch_idx):
        self.examples = self.enhance(batch[0])
