import torch
import torch.distributed as dist
import wandb


def train(model, loader, optimizer, every=50):
    for step, batch in enumerate(loader):
        losses = model(batch)
        sum(losses.values()).backward()
        optimizer.step()
        if step % every == 0:
            shown = torch.stack([losses[name].detach() for name in sorted(losses)])
            dist.all_reduce(shown)
            wandb.log(dict(zip(sorted(losses), shown.tolist())))
