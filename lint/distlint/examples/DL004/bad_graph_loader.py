from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data.distributed import DistributedSampler
from torch_geometric.loader import DataLoader


class Graphs(LightningDataModule):
    def train_dataloader(self):
        sampler = DistributedSampler(self.train, drop_last=True)  # expect: DL004 itself
        return DataLoader(self.train, batch_size=32, sampler=sampler)


trainer = Trainer(max_epochs=3)
