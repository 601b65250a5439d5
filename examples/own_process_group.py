"""A process group and a wrapper of one's own: a subclass of the strategy.

python examples/own_process_group.py
"""

from datetime import timedelta

import torch.distributed as dist
from digits import Classifier, Digits
from torch.nn.parallel import DistributedDataParallel

from distmetrics.strategies import DDP
from distmetrics.train import Trainer, seed_everything


class Patient(DDP):
    """Waits longer, and sends gradients in small buckets."""

    name = "patient"

    def init_process_group(self, backend, **options):
        """Make the group with another limit."""
        dist.init_process_group(backend, timeout=timedelta(hours=2), **options)

    def wrap(self, step):
        """Wrap the step in a DistributedDataParallel of one's own making."""
        return DistributedDataParallel(step, bucket_cap_mb=1, gradient_as_bucket_view=True)


if __name__ == "__main__":
    seed_everything(1)
    module = Classifier()
    trainer = Trainer(strategy=Patient, devices=2, accelerator="cpu", max_epochs=1)
    trainer.fit(module, datamodule=Digits(batch_size=8))
    module.print(
        f"{trainer.strategy.name}: accuracy {float(trainer.callback_metrics['val_acc']):.3f}"
    )
