import torch
from torch.utils.data import DataLoader, DistributedSampler


@torch.no_grad()
def fill(memory, model, dataset, passes):
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    for _ in range(passes):
        for images in loader:
            memory.add(model(images))


def step(model, images):
    model(images).backward()
