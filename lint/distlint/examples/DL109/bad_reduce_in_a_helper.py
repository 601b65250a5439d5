import torch.distributed as dist


def average(value):
    dist.all_reduce(value)
    return value / dist.get_world_size()


def validate(model, criterion, loader):
    losses = []
    for batch in loader:
        try:
            loss = criterion(model(batch["image"]), batch["label"])
            losses.append(average(loss))
        except (ValueError, IndexError):  # expect: DL109 misses the all_reduce
            pass
    return sum(losses)
