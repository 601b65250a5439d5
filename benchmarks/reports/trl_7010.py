"""A mean before ``gather_for_metrics``."""

from typing import Any

from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from benchmarks.reports._hugging_face import accelerator_of
from distmetrics import sync_and_compute

THREAD = "huggingface/trl#7010"
DATE = "2026-09-02"
SYMPTOM = "the repeated example is in the mean of a rank before gather_for_metrics: 3.6 for 4"
RANKS, BACKEND, LIMIT = 2, "gloo", 300.0  # these packages are slow to import


def _rewards() -> Any:
    return DataLoader([float(reward) for reward in range(9)], batch_size=5)  # type: ignore[arg-type]


def naive(comm: Any) -> float:
    """Average the rank's batch, then gather."""
    accelerator = accelerator_of(comm)
    means = [accelerator.gather_for_metrics(x.mean()) for x in accelerator.prepare(_rewards())]
    return float(means[-1].mean())


def ours(comm: Any) -> float:
    """Prepare the loader and sync a metric, as docs/use/accelerate.md says."""
    from distmetrics.integrations.accelerate import prepare

    reward = MeanMetric()
    for rewards in prepare(accelerator_of(comm), _rewards()):
        reward.update(rewards)
    return float(sync_and_compute(reward))


def right() -> float:
    """Return the mean of 0 to 8."""
    return 4.0
