import torch.distributed as dist
from pytorch_lightning import LightningDataModule, Trainer
from torch.utils import data


class Videos(LightningDataModule):
    def _loader(self, dataset):
        sampler = None
        if dist.is_initialized():
            sampler = data.distributed.DistributedSampler(  # expect: DL004 itself
                dataset, num_replicas=dist.get_world_size(), rank=dist.get_rank()
            )
        return data.DataLoader(dataset, sampler=sampler, shuffle=sampler is None)

    def train_dataloader(self):
        return self._loader(self.train)


trainer = Trainer(max_epochs=3)
