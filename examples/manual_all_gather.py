"""A metric that is no mean and no metric object, gathered once an epoch and watched by all ranks.

python examples/manual_all_gather.py
python examples/manual_all_gather.py --strategy ddp_spawn --devices 2
"""

import torch
from digits import Classifier, Digits, flags
from torch.nn import functional

from distmetrics import all_gather_cat
from distmetrics.train import EarlyStopping, Trainer, seed_everything


class MedianLoss(Classifier):
    """Logs the median over all samples, which no rank can know by itself."""

    def __init__(self):
        super().__init__()
        self.losses, self.counts = [], []

    def validation_step(self, batch, batch_idx):
        """Keep what the metric is made of."""
        x, y = batch
        self.losses.append(functional.cross_entropy(self(x), y, reduction="none"))
        self.counts.append(len(y))

    def on_validation_epoch_end(self):
        """Gather on every rank; log on rank 0, for all of them hold the same now."""
        # A rank may have no batch.
        mine = torch.cat(self.losses) if self.losses else torch.zeros(0, device=self.device)
        losses = all_gather_cat(mine)  # shards may differ in length
        counts = self.all_gather(torch.tensor(sum(self.counts), device=self.device))
        samples = counts.sum()  # counts has shape [world_size]
        self.losses.clear()
        self.counts.clear()
        if self.trainer.is_global_zero:
            self.log("val_median", losses.median(), rank_zero_only=True)
            self.log("val_samples", samples, rank_zero_only=True)


if __name__ == "__main__":
    options = flags(__doc__)
    seed_everything(1)
    # Every rank decides by rank 0's value.
    stop = EarlyStopping("val_median", patience=1, min_delta=0.5)
    trainer = Trainer(max_epochs=10, callbacks=[stop], **options)
    module = MedianLoss()
    trainer.fit(module, datamodule=Digits())
    values = trainer.callback_metrics
    module.print(
        f"median loss {float(values['val_median']):.3f} of {int(values['val_samples'])} samples"
    )
    module.print(f"stopped early: {trainer.current_epoch < 10}")
