from lightning.pytorch import LightningModule

from parallel import is_pipeline_last_stage


class Pipeline(LightningModule):
    def __init__(self, stages):
        super().__init__()
        self.stages = stages

    def validation_step(self, batch, batch_idx):
        loss = self.stages(batch).mean()
        if is_pipeline_last_stage():
            self.log("val_loss", loss, rank_zero_only=True)
