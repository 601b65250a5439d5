"""Fabric: loaders for evaluation in which every sample counts once."""

import sys
from typing import Any

from distmetrics.comm.communicator import chosen
from distmetrics.data.exact import exact_by
from distmetrics.errors import InputError, optional

with optional("lightning", "distmetrics.integrations.fabric"):
    if "lightning_fabric" in sys.modules and "lightning" not in sys.modules:
        from lightning_fabric import Fabric  # type: ignore[assignment,unused-ignore]
    else:
        from lightning.fabric import Fabric  # type: ignore[assignment,unused-ignore]

__all__ = ["setup_dataloaders"]


def setup_dataloaders(
    fabric: Fabric,
    *loaders: Any,
    move_to_device: bool = True,
    dealt: bool | None = None,
    equal_batches: bool = False,
    seed: int = 0,
) -> Any:
    """Return loaders for evaluation with every sample on exactly one rank, on Fabric's device.

    Fabric's own ``setup_dataloaders`` repeats samples so that all ranks take as many steps: keep it
    for training; a metric would count some samples twice. If the current communicator is a layout,
    data is dealt out to its shards.

    Args:
        fabric: the ``Fabric``, launched; all its processes must call this.
        loaders: one or several, set up by Fabric or not.
        move_to_device: move batches to ``fabric.device``.
        dealt: whether each rank's stream is its own share; see :func:`distmetrics.data.exact`.
        equal_batches: give all ranks as many batches, for a model whose forward pass has a
            collective in it; see :func:`distmetrics.data.exact`.
        seed: of the order of a sampler without a generator; the same on all ranks.

    Returns:
        a loader for one, else a list.

    Raises:
        InputError: as :func:`distmetrics.data.exact`; Fabric is not launched; no loader is given.

    >>> from lightning.fabric import Fabric
    >>> from torch.utils.data import DataLoader
    >>> fabric = Fabric(accelerator="cpu", devices=1)
    >>> loader = setup_dataloaders(fabric, DataLoader(range(3), batch_size=2))
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2]]
    """
    comm = chosen(None)
    whole = comm.whole
    if whole.world_size != fabric.world_size:
        raise InputError(
            f"setup_dataloaders deals out to {whole.world_size} ranks, and Fabric has "
            f"{fabric.world_size}",
            do="call fabric.launch() first.",
        )
    if not loaders:
        raise InputError("setup_dataloaders needs a loader", do="pass one or several.")
    options: dict[str, Any] = {"dealt": dealt, "equal_batches": equal_batches, "seed": seed}
    parts = [exact_by(loader, comm, **options) for loader in loaders]
    for part in parts if move_to_device else ():
        part.device = fabric.device
    return parts[0] if len(parts) == 1 else parts
