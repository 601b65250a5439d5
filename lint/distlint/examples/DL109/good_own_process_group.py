import torch.distributed as dist


def exchange(model, loader, local_group):
    for batch in loader:
        try:
            vectors = model(batch)
            dist.all_reduce(vectors, group=local_group)
        except RuntimeError:
            continue
