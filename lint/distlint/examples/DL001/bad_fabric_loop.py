import torch
from lightning.fabric import Fabric


def train(model, optimizer, loader):
    fabric = Fabric(accelerator="auto")
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    weight = torch.tensor([1.0, 4.0]).cuda()  # expect: DL001 fabric.device
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y, weight=weight)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
