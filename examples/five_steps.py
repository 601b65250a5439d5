"""From a loop in plain torch to many devices in five steps, and then to the trainer.

python examples/five_steps.py
python examples/five_steps.py --strategy ddp_spawn --devices 2
"""

import torch
from digits import Digits, flags
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from distmetrics import Runner
from distmetrics.train import Module, Trainer

EPOCHS, BATCH = 2, 24


def model():
    """Make the same model each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def loader(batch_size=BATCH):
    """Return the training digits in their order, so that all ways train on the same."""
    data = Digits()
    data.setup("fit")
    return DataLoader(data.sets["train"], batch_size=batch_size)


def plain():
    """The loop to begin with."""
    device = "cpu"
    net = model().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for x, y in loader():
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    return net.state_dict()


class Fit(Runner):  # 1: a subclass
    """The loop on any number of devices."""

    def run(self):  # 2: the loop goes into run; 3: nothing is said of devices
        """Train, and return the weights."""
        net = model()
        # 4: what was made is set up
        net, optimizer = self.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        batches = self.setup_dataloaders(loader(BATCH // self.world_size), train=True)
        for _ in range(EPOCHS):
            for x, y in batches:
                optimizer.zero_grad()
                self.backward(functional.cross_entropy(net(x), y))
                optimizer.step()
        return net.state_dict()


class Trained(Module):
    """The model and the body of the loop; the loop is the trainer's."""

    def __init__(self):
        super().__init__()
        self.net = model()

    def training_step(self, batch, batch_idx):
        """Return the loss of a batch."""
        x, y = batch
        return functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        """The same optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def apart(one, other):
    """Return the largest difference of a weight."""
    return max(float((one[name] - other[name]).abs().max()) for name in one)


if __name__ == "__main__":
    options = flags(__doc__)
    expected = plain()
    runner = Fit(**options)  # 5: made with the flags, and run
    found = runner.run()
    module = Trained()
    trainer = Trainer(max_epochs=EPOCHS, **options)
    trainer.fit(module, loader(BATCH // options["devices"]))
    module.print(f"runner as plain torch: {apart(expected, found) < 1e-6}")
    module.print(f"trainer as plain torch: {apart(expected, module.net.state_dict()) < 1e-6}")
