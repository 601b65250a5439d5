from torch.utils import data


class Videos:
    def _dataloader(self, split):
        dataset = self.dataset(split)
        sampler = data.distributed.DistributedSampler(dataset)  # expect: DL205 this sampler repeats samples
        return data.DataLoader(dataset, batch_size=8, sampler=sampler)

    def train_dataloader(self):
        return self._dataloader("first")

    def val_dataloader(self):
        return self._dataloader("second")
