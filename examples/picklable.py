"""What can't be sent to new processes is named by its attribute, before one is started.

python examples/picklable.py
"""

from functools import partial

import torch
from digits import Classifier, Digits

from distmetrics import find_unpicklable
from distmetrics.train import Trainer


class Scaled(Classifier):
    """Has a transform of its inputs."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        """Return the logits of scaled inputs."""
        return super().forward(self.scale(x))


if __name__ == "__main__":
    (found,) = find_unpicklable(Scaled(lambda x: x * 2), "module", by_value=False)
    print(found)
    module = Scaled(partial(torch.mul, 2))
    assert not find_unpicklable(module, "module", by_value=False)
    (result,) = Trainer(strategy="ddp_spawn", devices=2, accelerator="cpu").test(
        module, datamodule=Digits()
    )
    print(f"tested: {sorted(result)}")
