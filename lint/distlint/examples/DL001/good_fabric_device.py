import torch
from lightning.fabric import Fabric


def train(model, optimizer, loader):
    fabric = Fabric(accelerator="cuda")
    model, optimizer = fabric.setup(model, optimizer)
    weight = torch.tensor([1.0, 4.0], device=fabric.device)
    for x, y in fabric.setup_dataloaders(loader):
        fabric.backward(torch.nn.functional.cross_entropy(model(x), y, weight=weight))
        optimizer.step()
        optimizer.zero_grad()
