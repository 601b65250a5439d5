from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


class Model(LightningModule):
    def on_validation_epoch_end(self):
        sampler = DistributedSampler(self.extra, shuffle=False)
        for batch in DataLoader(self.extra, sampler=sampler):
            self.show(batch)

    def val_dataloader(self):
        return DataLoader(self.val)


trainer = Trainer(max_epochs=3)
