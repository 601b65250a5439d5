from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


class Shards(LightningDataModule):
    def train_dataloader(self):
        sampler = DistributedSampler(self.train, num_replicas=self.readers, rank=self.reader)
        return DataLoader(self.train, sampler=sampler)


trainer = Trainer(max_epochs=3)
