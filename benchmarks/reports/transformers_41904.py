"""A smaller last batch in Hugging Face's Trainer."""

from typing import Any

from benchmarks.reports._hugging_face import by_hand, trainer_of

THREAD = "huggingface/transformers#41904"
DATE = "2025-10-27"
SYMPTOM = "eval_loss counts the loss of a smaller last batch as often as that of a full one"
RANKS, BACKEND, LIMIT = 2, "gloo", 300.0  # these packages are slow to import


def naive(comm: Any) -> float:
    """Evaluate 9 samples in batches of 4."""
    return float(trainer_of(comm, 9, batch_size=4).evaluate()["eval_loss"])


def ours(comm: Any) -> float:
    """Attach to the trainer, as docs/use/huggingface.md says."""
    from distmetrics.integrations.transformers import attach

    trainer = trainer_of(comm, 9, batch_size=4)
    attach(trainer)
    return float(trainer.evaluate()["eval_loss"])


def right() -> float:
    """Return the mean over 9 samples."""
    return by_hand(9)
