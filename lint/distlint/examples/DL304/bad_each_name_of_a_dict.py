import torch.distributed as dist


def train(model, loader, optimizer, logger):
    for step, batch in enumerate(loader):
        losses = model(batch)
        sum(losses.values()).backward()
        optimizer.step()
        logs = {}
        for name, value in losses.items():
            reduced = value.detach().clone()
            dist.all_reduce(reduced)  # expect: DL304 at each step only to log a number
            logs[name] = reduced.item()
        logger.info(f"step {step}: {logs}")
