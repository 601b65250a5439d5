import wandb
from lightning.pytorch import LightningModule


class Model(LightningModule):
    def on_train_epoch_end(self):
        if self.global_rank == 0:
            wandb.log({"lr": self.optimizers().param_groups[0]["lr"]})
            self.logger.log_metrics({"epoch": self.current_epoch})
        self.trainer.strategy.barrier()
