from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler


class Model(LightningModule):
    def test_dataloader(self):
        rank = self.trainer.global_rank
        sampler = DistributedSampler(self.test, rank=rank, shuffle=False)  # expect: DL004 itself
        return DataLoader(self.test, sampler=sampler)


trainer = Trainer(max_epochs=3)
