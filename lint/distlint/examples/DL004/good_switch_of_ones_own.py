from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


class Pairs(LightningDataModule):
    def train_dataloader(self, is_distributed=False):
        if is_distributed:
            sampler = DistributedSampler(self.train)
        else:
            sampler = None
        return DataLoader(self.train, sampler=sampler)

    def test_dataloader(self):
        sampler = DistributedSampler(self.test, shuffle=False) if self.distributed else None
        return DataLoader(self.test, sampler=sampler)


trainer = Trainer(max_epochs=3)
