from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, DistributedSampler


class Images(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.train, sampler=DistributedSampler(self.train))


def train(model, data):
    for batch in data.train_dataloader():
        model(batch).backward()
