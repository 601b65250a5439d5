import webdataset as wds
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DistributedSampler


class Tars(LightningDataModule):
    def train_dataloader(self):
        return wds.WebLoader(self.train, sampler=DistributedSampler(self.train))


trainer = Trainer(max_epochs=3)
