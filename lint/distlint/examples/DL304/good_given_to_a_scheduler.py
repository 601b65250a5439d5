import torch.distributed as dist


def train(model, loader, optimizer, scheduler):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        scheduler.step(mean)
        print("loss", mean.item())
