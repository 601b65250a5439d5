import torch
from accelerate import Accelerator
from sklearn.metrics import cohen_kappa_score


def validate(accelerator: Accelerator, model, loader):
    model.eval()
    guesses, labels = [], []
    for batch in loader:
        with torch.no_grad():
            guesses += model(batch["pixels"]).argmax(-1).tolist()
        labels += batch["grade"].tolist()
    kappa = cohen_kappa_score(labels, guesses, weights="quadratic")
    kappa = torch.tensor(kappa, device=accelerator.device)
    kappa = accelerator.reduce(kappa, reduction="mean")  # expect: DL201 cohen_kappa_score
    accelerator.print(f"kappa {kappa.item():.3f}")
