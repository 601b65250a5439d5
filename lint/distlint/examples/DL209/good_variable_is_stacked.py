import torch
from accelerate import Accelerator


@torch.no_grad()
def evaluate(accelerator: Accelerator, model, loader):
    losses = []
    for batch in loader:
        losses.append(model(**batch).loss)
    losses = torch.stack(losses)
    return accelerator.gather(losses).mean().item()
