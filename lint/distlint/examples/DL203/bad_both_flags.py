import lightning as L


class Denoiser(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def _step(self, batch, stage):
        loss = (self.net(batch["noisy"]) - batch["clean"]).pow(2).mean()
        name = f"{stage}_loss"
        self.log(name, loss, rank_zero_only=True, sync_dist=True)  # expect: DL203 drop
        return loss

    def training_step(self, batch, batch_idx):
        return self._step(batch, "train")

    def validation_step(self, batch, batch_idx):
        return self._step(batch, "val")
