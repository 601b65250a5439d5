from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


class Images(LightningDataModule):
    def val_dataloader(self):
        sampler = DistributedSampler(self.val, shuffle=False)  # expect: DL004 itself
        return DataLoader(self.val, batch_size=8, sampler=sampler, num_workers=4)


trainer = Trainer(max_epochs=3)
