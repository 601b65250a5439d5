import torch.distributed as dist
import wandb


def train(model, loader, optimizer):
    for inputs, targets in loader:
        loss = model(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)  # expect: DL304 every rank waits in this all_reduce at each step
        wandb.log({"loss": shown.item() / dist.get_world_size()})
