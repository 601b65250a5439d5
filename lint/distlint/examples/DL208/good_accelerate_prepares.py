from accelerate import Accelerator
from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, optimizer, epochs):
    accelerator = Accelerator()
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(epochs):
        for batch in loader:
            accelerator.backward(model(batch))
            optimizer.step()
