"""A model that is told the number of items, and does not divide by it in an evaluation."""

from typing import Any

from benchmarks.reports._hugging_face import by_hand, trainer_of

THREAD = "Liquid4All/liquid-finetune#38"
DATE = "2026-08-11"
SYMPTOM = "eval_loss of Hugging Face's Trainer grows with the number of ranks: 4.436 on 8 for 0.554"
RANKS, BACKEND, LIMIT = 2, "gloo", 300.0  # these packages are slow to import


def naive(comm: Any) -> float:
    """Evaluate a model that takes further arguments."""
    return float(trainer_of(comm, 8, batch_size=4, takes_options=True).evaluate()["eval_loss"])


def ours(comm: Any) -> float:
    """Attach to the trainer, as docs/use/huggingface.md says."""
    from distmetrics.integrations.transformers import attach

    trainer = trainer_of(comm, 8, batch_size=4, takes_options=True)
    attach(trainer)
    return float(trainer.evaluate()["eval_loss"])


def right() -> float:
    """Return the mean over 8 samples."""
    return by_hand(8)
