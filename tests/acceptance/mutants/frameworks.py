"""Mutants of the integrations."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

from tests.acceptance import documented
from tests.acceptance.mutants import mutant, patch

PAGES = "test_frameworks.py::test_the_program_of_a_page_prints_what_the_page_shows"
ACCELERATE = "test_frameworks.py::test_accelerate_deals_and_gathers_each_sample_once"
FABRIC = "test_frameworks.py::test_fabric_deals_each_sample_once"
LIGHTNING = "test_frameworks.py::test_lightning_logs_the_numbers_of_one_process"
TRANSFORMERS = "test_frameworks.py::test_hugging_face_evaluates_as_one_process"
LOG = "test_frameworks.py::test_rows_of_a_log_are_of_all_ranks"


def imports_early() -> None:
    """Frameworks bring plugins of pytest along, which it then cannot rewrite."""
    os.environ["PYTEST_ADDOPTS"] = "-W ignore::pytest.PytestAssertRewriteWarning"


@mutant(f"{PAGES}[README.md]")
def a_sample_is_repeated() -> None:
    """``exact`` deals out as ``DistributedSampler`` does."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    import distmetrics.data

    def make(original):
        def broken(loader, *args, **options):
            if not torch.distributed.is_initialized():
                return original(loader, *args, **options)
            sampler: Any = DistributedSampler(loader.dataset, shuffle=False)
            return DataLoader(loader.dataset, loader.batch_size, sampler=sampler)

        return broken

    patch(distmetrics.data, "exact", make)


@mutant(f"{PAGES}[docs/use/accelerate.md]")
def the_line_that_mends_it_is_not_told() -> None:
    """The warning names ``exact`` where Accelerate's own ``prepare`` is needed."""

    def make(original):
        def broken(message, *args, **options):
            text = str(message).replace("integrations.accelerate.prepare", "data.exact")
            return original(text, *args, **options)

        return broken

    patch(warnings, "warn", make)
    patch(warnings, "warn_explicit", make)


@mutant(ACCELERATE)
def padding_of_accelerate_stays() -> None:
    """``prepare`` gives each rank the batches that Accelerate's own gives it."""
    imports_early()
    from distmetrics.integrations import accelerate

    def make(original):
        def broken(accelerator, loader, **options):
            return (
                original(accelerator, loader, **options) if options else accelerator.prepare(loader)
            )

        return broken

    patch(accelerate, "prepare", make)


@mutant(ACCELERATE)
def a_hang_of_the_model_is_not_foreseen() -> None:
    """Unequal batches are given to a model that waits for all ranks."""
    imports_early()
    from distmetrics.integrations import accelerate

    def make(original):
        def broken(accelerator, loader, *, equal_batches=None, **options):
            return original(accelerator, loader, equal_batches=bool(equal_batches), **options)

        return broken

    patch(accelerate, "prepare", make)


@mutant(FABRIC)
def batches_are_moved_always() -> None:
    """``move_to_device=False`` is ignored."""
    imports_early()
    from distmetrics.integrations import fabric

    def make(original):
        def broken(*args, move_to_device=True, **options):
            return original(*args, **options)

        return broken

    patch(fabric, "setup_dataloaders", make)


@mutant(FABRIC)
def fabric_deals_out_as_ever() -> None:
    """Loaders are those of Fabric, which repeat samples."""
    imports_early()
    from distmetrics.integrations import fabric

    def make(original):
        def broken(fabric, *loaders, move_to_device=True, equal_batches=False, seed=0):
            if equal_batches or not loaders or fabric.world_size == 1:
                options = {"move_to_device": move_to_device, "equal_batches": equal_batches}
                return original(fabric, *loaders, **options)
            return fabric.setup_dataloaders(*map(copy.copy, loaders))

        return broken

    patch(fabric, "setup_dataloaders", make)


@mutant(LIGHTNING)
def names_of_metrics_are_ignored() -> None:
    """``SyncMetrics(["local"])`` does not sync a metric that has ``sync_on_compute=False``."""
    imports_early()
    from distmetrics.integrations.lightning import SyncMetrics

    def make(original):
        def broken(self, metrics=None, **options):
            original(self, [] if metrics == ["local"] else metrics, **options)

        return broken

    patch(SyncMetrics, "__init__", make)


@mutant(LIGHTNING)
def the_weight_stays_in_lightning() -> None:
    """Logged means are weighted by samples for good, also in a trainer without the callback."""
    imports_early()
    from distmetrics.integrations.lightning import SyncMetrics

    for name in ("teardown", "on_exception"):
        patch(SyncMetrics, name, lambda original: lambda self, *args, **options: None)


@mutant(LIGHTNING)
def a_late_update_is_lost() -> None:
    """An update after the sync of the epoch is in no value, without a word."""
    imports_early()
    from distmetrics.errors import StateError
    from distmetrics.integrations.lightning import SyncMetrics

    def make(original):
        def broken(self, *args, **options):
            try:
                original(self, *args, **options)
            except StateError as error:
                if "updated after" not in str(error):
                    raise

        return broken

    patch(SyncMetrics, "on_validation_end", make)


@mutant(TRANSFORMERS)
def weights_are_ignored() -> None:
    """``weight=`` changes nothing."""
    imports_early()
    from distmetrics.integrations import transformers

    def make(original):
        def broken(trainer, metrics=None, *, weight=None, **options):
            return original(trainer, metrics, **options)

        return broken

    patch(transformers, "attach", make)


@mutant(TRANSFORMERS)
def metrics_are_not_reset() -> None:
    """Metrics go on from one evaluation to the next."""
    from torchmetrics.classification import MulticlassAccuracy

    patch(MulticlassAccuracy, "reset", lambda original: lambda self: None)


@mutant(TRANSFORMERS)
def the_trainer_keeps_the_metrics() -> None:
    """``detach`` leaves everything on the trainer."""
    imports_early()
    patch(documented("Attachment"), "detach", lambda original: lambda self: None)


@mutant(f"{LOG}[by_accelerate]", f"{LOG}[by_lightning]", f"{LOG}[by_transformers]")
def all_values_weigh_the_same() -> None:
    """A mean of the log does not count values by their weight."""
    import distmetrics

    def make(original):
        return lambda self, name, value, weight=1: original(self, name, value, weight=1)

    patch(distmetrics.Log, "mean", make)


@mutant(f"{LOG}[by_lightning]")
def the_last_row_is_lost() -> None:
    """What the last steps of a training have logged is written nowhere."""
    imports_early()
    patch(documented("LogMetrics"), "on_train_end", lambda original: lambda self, *_: None)


@mutant(f"{LOG}[by_accelerate]")
def a_row_is_written_in_every_step() -> None:
    """``every=`` of ``attach_log`` is ignored."""
    imports_early()
    from distmetrics.integrations import accelerate

    def make(original):
        return lambda accelerator, log, *, every=50: original(accelerator, log, every=1)

    patch(accelerate, "attach_log", make)
