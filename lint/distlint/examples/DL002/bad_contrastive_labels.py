import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule


class ImageText(LightningModule):
    def validation_step(self, batch, batch_idx):
        image, text = batch
        image_logits, text_logits = self.forward(image, text)
        labels = torch.arange(len(image_logits))  # expect: DL002 meets
        return (F.cross_entropy(image_logits, labels) + F.cross_entropy(text_logits, labels)) / 2
