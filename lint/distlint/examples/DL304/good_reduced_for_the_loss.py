import torch.distributed as dist


def train(model, loader, optimizer):
    for batch in loader:
        logits, tokens = model(batch)
        count = tokens.detach().clone()
        dist.all_reduce(count)
        loss = logits.sum() / count
        loss.backward()
        optimizer.step()
        print("tokens", count.item())
