from pytorch_lightning import Callback
from pytorch_lightning.utilities import rank_zero_only


class Table(Callback):
    @rank_zero_only
    def on_validation_epoch_end(self, trainer, pl_module):
        scores = pl_module.all_gather(pl_module.scores)  # expect: DL101 call it on every rank,
        trainer.logger.log_table("scores", data=scores.tolist())
