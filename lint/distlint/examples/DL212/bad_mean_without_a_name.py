import torch.distributed as dist


def validate(model, criterion, loader):
    losses = 0
    for images, targets in loader:
        losses = losses + criterion(model(images), targets)
    dist.all_reduce(losses / len(loader))  # expect: DL212 all_reduce changes a temporary tensor
    return losses.item() / len(loader) / dist.get_world_size()
