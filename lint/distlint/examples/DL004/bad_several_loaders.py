from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


class Folds(LightningDataModule):
    def train_dataloader(self):
        return [
            DataLoader(fold, sampler=DistributedSampler(fold))  # expect: DL004 itself
            for fold in self.folds
        ]


trainer = Trainer(max_epochs=3)
