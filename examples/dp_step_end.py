"""One process with several devices: what must see the whole batch belongs into the step's end.

python examples/dp_step_end.py
"""

import torch
from digits import Classifier, Digits
from torch.nn import functional

from distmetrics.train import Trainer, seed_everything

DEVICES, BATCH = 2, 16


class MetricAtTheEnd(Classifier):
    """A step sees a part of the batch, on a replica that lives as long; its end sees all of it."""

    def validation_step(self, batch, batch_idx):
        """Return what the end of the step needs."""
        x, y = batch
        assert len(x) <= BATCH // DEVICES
        return self(x).argmax(dim=1), y

    def validation_step_end(self, outputs):
        """Log the accuracy of the whole batch."""
        predicted, y = outputs
        self.log("val_acc", self.val_accuracy(predicted, y), prog_bar=True)


class OwnReduction(Classifier):
    """Gets a loss from each device, and makes one of them."""

    def training_step_end(self, outputs):
        """Return the mean loss, and the predictions of all devices."""
        assert outputs["loss"].shape == (DEVICES,)
        assert outputs["logits"].shape == (BATCH, 10)
        return {
            "loss": outputs["loss"].mean(),
            "predicted": outputs["logits"].softmax(dim=1).argmax(dim=1),
        }

    def training_epoch_end(self, outputs):
        """Join the predictions of the epoch's steps."""
        self.predicted = torch.cat([step["predicted"] for step in outputs])


class WholeBatch(Classifier):
    """A loss that compares each sample with all others of the batch, not of its device's part."""

    def training_step(self, batch, batch_idx):
        """Return what the loss is made of."""
        x, y = batch
        return {"features": self(x), "labels": y}

    def training_step_end(self, outputs):
        """Ask for samples of one digit to be nearer to each other than to the rest."""
        features, labels = functional.normalize(outputs["features"]), outputs["labels"]
        alike = labels[:, None] == labels[None, :]
        near = features @ features.T
        return functional.binary_cross_entropy_with_logits(4 * near, alike.float())


def fitted(module, **options):
    """Train a module on two replicas, or as the options say."""
    seed_everything(1)
    chosen = {"strategy": "dp", "devices": DEVICES} | options
    trainer = Trainer(accelerator="cpu", **chosen)
    trainer.fit(module, datamodule=Digits(BATCH))
    return trainer


if __name__ == "__main__":
    accuracy = fitted(MetricAtTheEnd(), max_epochs=1).callback_metrics["val_acc"]
    print(f"accuracy {float(accuracy):.3f}")
    reduced = OwnReduction()
    fitted(reduced, max_steps=4, enable_model_summary=False, limit_val_batches=0)
    print(f"predictions of an epoch: {len(reduced.predicted)}")
    torch.manual_seed(0)
    split, whole = WholeBatch(), WholeBatch()
    whole.load_state_dict(split.state_dict())
    fitted(split, max_steps=10, limit_val_batches=0)
    fitted(whole, max_steps=10, limit_val_batches=0, strategy="single", devices=1)
    apart = max(
        (a - b).abs().max() for a, b in zip(split.parameters(), whole.parameters(), strict=True)
    )
    print(f"as on one device: {bool(apart < 1e-6)}")
