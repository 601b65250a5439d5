import logging

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer):
    model = DDP(net)
    for batch in loader:
        try:
            loss = model(batch)
            loss.backward()
            optimizer.step()
        except RuntimeError as error:
            logging.error("rank %s failed: %s", dist.get_rank(), error)
            raise
