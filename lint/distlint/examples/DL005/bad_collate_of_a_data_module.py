from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader


class Complexes(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(
            self.train,
            collate_fn=lambda rows: self.crop(rows, self.hparams.crop),  # expect: DL005 lambda
            num_workers=self.hparams.num_workers,
        )
