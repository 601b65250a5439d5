import torch
from accelerate import Accelerator


@torch.no_grad()
def evaluate(accelerator: Accelerator, model, loader):
    losses = []
    for batch in loader:
        loss = model(**batch).loss
        losses.append(accelerator.gather_for_metrics(loss.repeat(len(batch["labels"]))))
    return torch.mean(torch.cat(losses)).item()
