import torch
from lightning.pytorch import LightningModule
from sklearn.metrics import average_precision_score


class Tagging(LightningModule):
    def __init__(self, net, distributed_mode):
        super().__init__()
        self.net, self.distributed_mode = net, distributed_mode
        self.out, self.target = [], []

    def validation_step(self, batch, batch_idx):
        self.out.append(self.net(batch["x"]))
        self.target.append(batch["y"])

    def on_validation_epoch_end(self):
        out, target = torch.cat(self.out), torch.cat(self.target)
        if self.distributed_mode:
            everything, wanted = self.all_gather(out), self.all_gather(target)
            ap = average_precision_score(wanted.flatten(0, 1).cpu(), everything.flatten(0, 1).cpu())
            self.log("val/ap", ap, sync_dist=True)
        else:
            self.log("val/ap", average_precision_score(target.cpu(), out.cpu()), sync_dist=True)
        self.out.clear()
        self.target.clear()
