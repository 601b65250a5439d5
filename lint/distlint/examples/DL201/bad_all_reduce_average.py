import torch
import torch.distributed as dist
from sklearn.metrics import roc_auc_score


@torch.no_grad()
def evaluate(model, loader, device):
    scores, labels = [], []
    for x, y in loader:
        scores.append(model(x.to(device)).sigmoid().cpu())
        labels.append(y)
    auc = roc_auc_score(torch.cat(labels), torch.cat(scores))
    auc = torch.tensor(auc, device=device)
    dist.all_reduce(auc, op=dist.ReduceOp.AVG)  # expect: DL201 gather predictions and labels
    return auc.item()
