import torch
import torch.distributed as dist

def train(model, loader):
    for step, (images, labels) in enumerate(loader):
        loss = model(images, labels)
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad)
        if bad.item() > 0:
            continue
        if step % 10 == 0:
            dist.barrier()
        if loss > 3:
            print(loss)
