from lightning.pytorch import LightningModule

class Model(LightningModule):
    def on_validation_epoch_end(self):
        if self.global_rank == 0:
            self.log("first", self.scale, rank_zero_only=True)
        else:
            print(self.scale)
        if self.global_rank == 0:
            self.log("scale", self.scale)
        else:
            self.log("scale", self.scale)
