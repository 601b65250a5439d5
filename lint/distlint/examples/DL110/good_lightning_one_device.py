from lightning.pytorch import LightningModule, Trainer


class Graphs(LightningModule):
    def training_step(self, data, batch_idx):
        if data.edge_index.numel() == 0:
            return None
        return self.criterion(self(data.x, data.edge_index), data.y)


trainer = Trainer(devices=1)
