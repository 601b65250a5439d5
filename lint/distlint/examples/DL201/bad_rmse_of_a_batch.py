import pytorch_lightning as pl
import torch
import torch.nn.functional as F


class Forecast(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def validation_step(self, batch, batch_idx):
        history, future = batch
        mse = F.mse_loss(self.net(history), future)
        self.log("val_mse", mse, sync_dist=True)
        self.log("val_rmse", torch.sqrt(mse), sync_dist=True)  # expect: DL201 squared error
