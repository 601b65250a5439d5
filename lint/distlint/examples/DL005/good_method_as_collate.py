from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader


class Texts(LightningDataModule):
    def collate(self, rows):
        return self.tokenizer(rows)

    def train_dataloader(self):
        return DataLoader(self.train, collate_fn=self.collate, num_workers=4)
