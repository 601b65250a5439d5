import logging

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Engine:
    def __init__(self, model, optimizer, device):
        self.model, self.optimizer = DDP(model.to(device)), optimizer

    def training_loop(self, data_loader, limit):
        failed = 0
        for data in data_loader:
            try:
                output = self.do_iteration(data)
            except RuntimeError as error:  # expect: DL109 misses the training step
                if "out of memory" in str(error) and failed < limit:
                    failed += 1
                    torch.cuda.empty_cache()
                    continue
                raise
            logging.info("loss %s", output)
            self.optimizer.step()
            self.optimizer.zero_grad()
