from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader


class Images(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.train, batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=8)


trainer = Trainer(max_epochs=3)
