import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        self.log("val_loss", F.mse_loss(self(inputs), targets))


trainer = Trainer(devices=4, strategy="ddp", use_distributed_sampler=False)
trainer.validate(Model())  # every rank sees all of the small validation set
