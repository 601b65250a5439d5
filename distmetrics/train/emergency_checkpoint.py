"""A last checkpoint from a rank that is left, once others are lost or have gone astray."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distmetrics.comm.group import GroupCommunicator
from distmetrics.errors import DistmetricsError, DivergedError, MismatchError, PeerLostError
from distmetrics.launch.script import named_error
from distmetrics.train.callbacks import ModelCheckpoint
from distmetrics.train.files import write
from distmetrics.train.metric_state import metric_states, metrics_in
from distmetrics.train.resume import checkpoint

if TYPE_CHECKING:
    from distmetrics.train.loops import Run
    from distmetrics.train.state import TrainerState

RESCUED = "rescued.ckpt"


def rescue(trainer: TrainerState, run: Run | None, error: BaseException) -> Path | None:
    """Save the weights and the optimizers' state as they are on this rank, where the ranks can't go
    on together.

    Only after errors of that kind, in a fit with a
    :class:`~distmetrics.train.callbacks.ModelCheckpoint`, whose folder takes the file; by the
    lowest rank that the error is not about. ``fit(ckpt_path=...)`` goes on from it at the beginning
    of the epoch that was under way. What can't be saved is a warning: the error itself goes on.

    Returns: the file, on the rank that wrote it.
    """
    lost = None if run is None else _lost(trainer, error)
    if run is None or lost is None:
        return None
    keeper = next(
        (callback for callback in trainer.callbacks if isinstance(callback, ModelCheckpoint)), None
    )
    left = [rank for rank in range(trainer.world_size) if rank not in lost.peers] or [0]
    if keeper is None or trainer.global_rank != left[0]:
        return None
    if not trainer.strategy.whole_on_each_rank:
        text = f"no last checkpoint is saved: strategy={trainer.strategy.name!r} splits the model over ranks"
        warnings.warn(
            f"{text}. Go on from {keeper.last_model_path or 'the beginning'}.", stacklevel=2
        )
        return None
    path = keeper.folder(trainer) / RESCUED
    try:
        write(_content(trainer, run), path)
    except Exception as problem:  # noqa: BLE001  (whatever a hook of the user's raises: the first error must go on)
        warnings.warn(
            f"no last checkpoint is saved: {type(problem).__name__}: {problem}", stacklevel=2
        )
        return None
    error.add_note(
        f"rank {trainer.global_rank} has saved the weights after step {trainer.global_step}: {path}"
    )
    return path


def _lost(trainer: TrainerState, error: BaseException) -> DistmetricsError | None:
    """Return the error that names who is lost, where this is one of that kind; DDP's own
    connections name nobody.
    """
    comm = trainer.strategy.comm()
    if isinstance(comm, GroupCommunicator) and isinstance(error, RuntimeError):
        return named_error(comm, error)
    return error if isinstance(error, PeerLostError | DivergedError | MismatchError) else None


def _content(trainer: TrainerState, run: Run) -> dict[str, Any]:
    """Return a checkpoint of this rank alone, at the beginning of the epoch that is under way."""
    fresh = {path: copy.deepcopy(metric) for path, metric in metrics_in(run.module).items()}
    for metric in fresh.values():
        metric.reset()
    content = checkpoint(trainer, run, alone=True)
    content["position"] = dataclasses.asdict(type(trainer.position)())
    own = content["ranks"][0]
    own.update(metrics=metric_states(fresh), log=None, outputs=[], gradients={})
    return content
