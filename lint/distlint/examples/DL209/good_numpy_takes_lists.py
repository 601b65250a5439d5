import numpy as np
from lightning.fabric import Fabric


def report(fabric: Fabric, model, loader):
    scores = []
    for batch in loader:
        scores.append(float(model(batch).mean()))
    mine = np.mean(scores)
    return float(fabric.all_gather(mine).mean())
