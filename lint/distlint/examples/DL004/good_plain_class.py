from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


class Loaders:
    def train_dataloader(self):
        return DataLoader(self.data, sampler=DistributedSampler(self.data))


class Unused(LightningDataModule):
    pass


trainer = Trainer(max_epochs=3)
