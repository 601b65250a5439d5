"""A data module, a module and a trainer, on which the other examples build: digits are learned.

python examples/digits.py
python examples/digits.py --strategy ddp --devices 2
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from distmetrics.train import DataModule, Module, Trainer, seed_everything


class Digits(DataModule):
    """Scikit-learn's 1 797 digits of 8 × 8 pixels, which come with it: nothing is downloaded."""

    def __init__(self, batch_size=16):
        super().__init__()
        self.batch_size = batch_size

    def prepare_data(self):
        """Read the file once a machine, before every rank does."""
        load_digits()

    def setup(self, stage):
        """Make the three data sets."""
        pixels, labels = load_digits(return_X_y=True)
        x, y = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
        cuts = {"train": slice(1200), "val": slice(1200, 1500), "test": slice(1500, None)}
        self.sets = {name: TensorDataset(x[cut], y[cut]) for name, cut in cuts.items()}

    def train_dataloader(self):
        """Say nothing of ranks and samplers: each rank gets its part."""
        return DataLoader(self.sets["train"], batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        """Say nothing of padding: every sample is on exactly one rank."""
        return DataLoader(self.sets["val"], batch_size=self.batch_size)

    def test_dataloader(self):
        """Likewise."""
        return DataLoader(self.sets["test"], batch_size=self.batch_size)


class Classifier(Module):
    """Two layers; validation and test log the accuracy of each batch, weighted by its size."""

    def __init__(self, hidden=64, lr=0.003):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(64, self.hparams.hidden), nn.ReLU(), nn.Linear(self.hparams.hidden, 10)
        )
        self.val_accuracy = MulticlassAccuracy(10, average="micro")
        self.test_accuracy = MulticlassAccuracy(10, average="micro")

    def forward(self, x):
        """Return the logits."""
        return self.net(x)

    def training_step(self, batch, batch_idx):
        """Return the loss, and what a step's end may want."""
        x, y = batch
        logits = self(x)
        return {"loss": functional.cross_entropy(logits, y), "logits": logits.detach()}

    def validation_step(self, batch, batch_idx):
        """Log a number a batch."""
        x, y = batch
        self.log("val_acc", self.val_accuracy(self(x).argmax(dim=1), y), prog_bar=True)

    def test_step(self, batch, batch_idx):
        """Likewise."""
        x, y = batch
        self.log("test_acc", self.test_accuracy(self(x).argmax(dim=1), y))

    def configure_optimizers(self):
        """Adam, with the rate that was saved among the hyperparameters."""
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def flags(description):
    """Read ``--strategy`` and ``--devices`` from the command line."""
    ask = argparse.ArgumentParser(description=description.partition("\n")[0])
    ask.add_argument("--strategy", default="single")
    ask.add_argument("--devices", type=int, default=1)
    return vars(ask.parse_args()) | {"accelerator": "cpu"}


if __name__ == "__main__":
    options = flags(__doc__)
    seed_everything(1)
    module, data = Classifier(), Digits(batch_size=16 // options["devices"])
    trainer = Trainer(max_epochs=2, enable_model_summary=True, **options)
    trainer.fit(module, datamodule=data)
    (result,) = trainer.test(module, datamodule=data, verbose=True)
    module.print(f"test accuracy {result['test_acc']:.3f}")
