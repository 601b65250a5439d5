import torch.distributed as dist


def train(model, loader, optimizer, target):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        print("loss", mean.item())
        if mean < target:
            break
