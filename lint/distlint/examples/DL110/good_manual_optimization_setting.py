from lightning.pytorch import LightningModule, Trainer


class Gan(LightningModule):
    def __init__(self, frozen):
        super().__init__()
        self.automatic_optimization = False
        self.frozen = frozen

    def training_step(self, batch, batch_idx):
        if self.frozen or len(batch) == 0:
            return
        loss = self.generator(batch)
        self.manual_backward(loss)
        self.optimizers().step()


trainer = Trainer(devices=2, strategy="ddp")
