from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader

from .samplers import BucketDistributedSampler


class Speech(LightningDataModule):
    def train_dataloader(self):
        sampler = BucketDistributedSampler(self.train, seconds=120)
        return DataLoader(self.train, batch_sampler=sampler)


trainer = Trainer(max_epochs=3)
