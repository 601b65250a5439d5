from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


def make_loader(data, batch_size):
    return DataLoader(data, batch_size, sampler=DistributedSampler(data, shuffle=False))


class Images(LightningDataModule):
    def predict_dataloader(self):
        return DataLoader(self.images)


trainer = Trainer(max_epochs=3)
