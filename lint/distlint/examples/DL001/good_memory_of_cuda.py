import torch
from lightning.pytorch import LightningModule
from torch import nn


class Measured(LightningModule):
    def on_train_epoch_start(self):
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def on_train_epoch_end(self):
        torch.cuda.synchronize()
        with torch.autocast(device_type="cuda", enabled=False):
            self.print(torch.cuda.max_memory_allocated())
