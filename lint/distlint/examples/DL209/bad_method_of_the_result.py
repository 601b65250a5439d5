import lightning as L


class Counter(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.hits: list = []

    def validation_step(self, batch, batch_idx):
        self.hits.append((self.net(batch["x"]).argmax(-1) == batch["y"]).sum())

    def on_validation_epoch_end(self):
        gathered = self.all_gather(self.hits)
        self.log("val/hits", gathered.sum(), rank_zero_only=True)  # expect: DL209 on which .sum()
        self.hits.clear()
