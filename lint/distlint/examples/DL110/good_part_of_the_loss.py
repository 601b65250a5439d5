import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer, weight):
    model = DDP(net)
    for images, targets, masks in loader:
        logits, depth = model(images)
        loss = F.cross_entropy(logits, targets)
        if masks is not None and weight is not None:
            loss = loss + weight * F.l1_loss(depth, masks)
        if optimizer is None:
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
