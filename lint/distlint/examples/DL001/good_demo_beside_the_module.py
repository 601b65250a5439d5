import torch
from lightning.pytorch import LightningModule
from torch import nn


class Classifier(LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)


def predict(path, images):
    model = Classifier.load_from_checkpoint(path).cuda().eval()
    return model(images.cuda())
