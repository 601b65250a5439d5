"""A last checkpoint from a rank that is left, once others are lost or have gone astray."""

import warnings
from dataclasses import asdict
from typing import Any

from distmetrics.comm.process_group import GroupCommunicator
from distmetrics.errors import DistmetricsError, DivergedError, MismatchError, PeerLostError
from distmetrics.run.callbacks import ModelCheckpoint
from distmetrics.run.checkpoint import checkpoint
from distmetrics.run.checkpoint_file import write
from distmetrics.run.context import LoopProgress
from distmetrics.run.run import Run

FILE_NAME = "rescued.ckpt"


def save_emergency_checkpoint(run: Run, error: BaseException) -> None:
    """Save the weights and the optimizers' state of this rank, where ranks can't go on together.

    Only after errors of that kind, in a fit with a
    :class:`~distmetrics.run.callbacks.ModelCheckpoint`, whose folder takes the file; by the
    lowest rank that the error is not about. ``fit(ckpt_path=...)`` goes on from it at the beginning
    of the epoch that was under way. What can't be saved is a warning: the error itself goes on.
    """
    trainer = run.trainer
    lost = None if trainer.fit_state is None else _lost(run, error)
    keepers = [each for each in trainer.callbacks if isinstance(each, ModelCheckpoint)]
    if lost is None or not keepers:
        return
    left = set(range(trainer.world_size)) - set(lost.peers)
    if trainer.global_rank != min(left, default=0):
        return
    if not trainer.strategy.whole_on_each_rank:
        warnings.warn(
            f"no last checkpoint is saved: strategy={trainer.strategy.name!r} splits the model "
            f"over ranks. Go on from {keepers[0].last_model_path or 'the beginning'}.",
            stacklevel=2,
        )
        return
    path = keepers[0].folder(trainer) / FILE_NAME
    try:
        write(_content(run), path)
    except Exception as problem:  # noqa: BLE001  (whatever a hook raises: the first error goes on)
        kind = type(problem).__name__
        warnings.warn(f"no last checkpoint is saved: {kind}: {problem}", stacklevel=2)
        return
    error.add_note(
        f"rank {trainer.global_rank} has saved the weights after step {trainer.global_step}: {path}"
    )


def _lost(run: Run, error: BaseException) -> DistmetricsError | None:
    """Return the error that names who is lost, which DDP's own connections do not."""
    comm = run.comm
    if isinstance(comm, GroupCommunicator) and isinstance(error, RuntimeError):
        return comm.blame(error)
    return error if isinstance(error, PeerLostError | DivergedError | MismatchError) else None


def _content(run: Run) -> dict[str, Any]:
    """Return a checkpoint of this rank alone, at the beginning of the epoch that is under way."""
    content = checkpoint(run, alone=True)
    content["position"] = asdict(LoopProgress(content["epoch"], content["global_step"]))
    own = content["ranks"][0]
    own.update(metrics={}, log=None, outputs=[], gradients={}, weights=None)
    return content
