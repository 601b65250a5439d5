from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from torchvision.transforms import Compose, Lambda, ToTensor


class Digits(LightningDataModule):
    def transform(self):
        return Compose([ToTensor(), Lambda(lambda x: x * 2 - 1)])  # expect: DL005 workers

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, num_workers=4)
