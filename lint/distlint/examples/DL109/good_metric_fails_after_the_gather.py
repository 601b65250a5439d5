import torch
import torch.distributed as dist
from sklearn.metrics import roc_auc_score


def evaluate(scores, labels, world_size):
    rows = [None] * world_size
    try:
        dist.all_gather_object(rows, (scores, labels))
        scores = torch.cat([row[0] for row in rows])
        labels = torch.cat([row[1] for row in rows])
        return roc_auc_score(labels, scores)
    except ValueError:
        return float("nan")
