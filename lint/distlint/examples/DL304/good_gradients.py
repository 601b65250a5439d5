import torch.distributed as dist


def train(model, loader, optimizer):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        print("loss", loss.item())
