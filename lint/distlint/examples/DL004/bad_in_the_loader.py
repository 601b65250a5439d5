from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


class Images(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.data, sampler=DistributedSampler(self.data))  # expect: DL004 itself


trainer = Trainer(max_epochs=3)
