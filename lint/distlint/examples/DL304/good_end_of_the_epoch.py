import torch
import torch.distributed as dist


def run(model, loader, optimizer, writer, epochs):
    for epoch in range(epochs):
        total = torch.zeros((), device="cuda")
        for batch in loader:
            loss = model(batch)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        writer.add_scalar("loss", total.item() / len(loader), epoch)
