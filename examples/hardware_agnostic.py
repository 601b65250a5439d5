"""Code that names no device and no rank, and validation numbers that are those of one process.

python examples/hardware_agnostic.py
python examples/hardware_agnostic.py --strategy ddp_spawn --devices 3
"""

import torch
from digits import Classifier, Digits, flags
from torch.nn import functional
from torchmetrics.classification import MulticlassF1Score

from distmetrics.train import Trainer, seed_everything


class Noisy(Classifier):
    """Adds noise to what it reads: a tensor of its own goes where the input is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("sigma", torch.full((64,), 0.01))  # moves with the module
        self.val_f1 = MulticlassF1Score(10, average="macro")

    def forward(self, x):
        """Return the logits, of inputs with some noise while training."""
        if self.training:
            x = x + torch.randn(x.shape).to(x) * self.sigma
        assert self.sigma.device == x.device == self.device
        return super().forward(x)

    def validation_step(self, batch, batch_idx):
        """A mean over all samples can be a logged number, an F1 score can not: log the object."""
        x, y = batch
        logits = self(x)
        self.log(
            "val_loss",
            functional.cross_entropy(logits, y),
            on_step=True,
            on_epoch=True,
            sync_dist=True,
        )
        self.val_f1.update(logits, y)
        self.log("val_f1", self.val_f1, on_epoch=True)


if __name__ == "__main__":
    options = flags(__doc__)
    seed_everything(1)
    module, data = Noisy(), Digits()
    (one,) = Trainer(strategy="single", accelerator="cpu").validate(module, datamodule=data)
    trainer = Trainer(max_epochs=1, **options)
    (before,) = trainer.validate(module, datamodule=data)
    module.print(
        f"the same as one process: {all(abs(before[name] - one[name]) < 1e-6 for name in one)}"
    )
    trainer.fit(module, datamodule=data)
    module.print(f"macro F1 {float(trainer.callback_metrics['val_f1']):.3f}")
