from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


class Images(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.train, sampler=DistributedSampler(self.train))


trainer = Trainer(max_epochs=3, replace_sampler_ddp=False)
