import torch
from torch.utils.data import DataLoader, DistributedSampler


@torch.no_grad()
def evaluate(model, dataset):
    model.eval()
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))  # expect: DL205 this sampler repeats samples
    right = sum((model(x).argmax(-1) == y).sum() for x, y in loader)
    return right / len(dataset)
