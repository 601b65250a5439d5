from lightning.pytorch import LightningModule, Trainer


class Model(LightningModule):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        mean = sum(self.losses) / len(self.losses)
        self.losses.clear()
        self.log("epoch_loss", mean, sync_dist=True)


Trainer(devices=4, strategy="ddp").fit(Model())
