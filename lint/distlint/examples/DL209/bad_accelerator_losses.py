import torch
from accelerate import Accelerator


def evaluate(accelerator: Accelerator, model, loader):
    losses = []
    for batch in loader:
        with torch.no_grad():
            losses.append(model(**batch).loss)
    return torch.mean(accelerator.gather(losses))  # expect: DL209 gather of a list gives a list
