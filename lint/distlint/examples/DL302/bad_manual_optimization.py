from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = self.loss(batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log(  # expect: DL302 every rank waits here in each training step
            "loss",
            loss.detach(),
            on_step=True,
            on_epoch=True,
            sync_dist=True,
        )


Trainer(devices=4, strategy="ddp").fit(Model())
