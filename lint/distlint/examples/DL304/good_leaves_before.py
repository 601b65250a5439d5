import torch.distributed as dist


def train(model, loader, optimizer, writer):
    for step, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        if step % 20 != 0:
            continue
        shown = loss.detach()
        dist.all_reduce(shown)
        writer.add_scalar("loss", shown.item(), step)
