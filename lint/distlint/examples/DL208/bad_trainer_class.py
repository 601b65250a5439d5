import torch
from torch.utils.data.distributed import DistributedSampler


class Runner:
    def __init__(self, model, dataset, optimizer):
        self.model, self.optimizer = model, optimizer
        self.loader = torch.utils.data.DataLoader(dataset, sampler=DistributedSampler(dataset))

    def run(self, epochs):
        for epoch in range(epochs):  # expect: DL208 call sampler.set_epoch(epoch) at the start
            self.run_epoch()

    def run_epoch(self):
        for batch in self.loader:
            self.model(batch).backward()
            self.optimizer.step()
