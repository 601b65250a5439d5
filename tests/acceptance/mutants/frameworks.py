"""Mutants of the integrations."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from tests.acceptance import home
from tests.acceptance.mutants import mutant, patch
from tests.acceptance.mutants.data import Changed, warns

PAGES = "test_frameworks.py::test_the_program_of_a_page_prints_what_the_page_shows"
ACCELERATE = "test_frameworks.py::test_accelerate_deals_and_gathers_each_sample_once"
FABRIC = "test_frameworks.py::test_fabric_deals_each_sample_once"
LIGHTNING = "test_frameworks.py::test_lightning_logs_the_numbers_of_one_process"
TRANSFORMERS = "test_frameworks.py::test_hugging_face_evaluates_as_one_process"
LOG = "test_frameworks.py::test_rows_of_a_log_are_of_all_ranks"


class Later(importlib.abc.MetaPathFinder):
    """Patches a module when it is imported: frameworks take seconds, few processes need them."""

    def __init__(self, module: str, *names: str, make: Callable[..., Any]) -> None:
        self.module = module if "." in module else f"distmetrics.integrations.{module}"
        self.names, self.make = names, make
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        run: Any = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            for name in self.names:
                owner, _, attribute = name.rpartition(".")
                patch(getattr(module, owner) if owner else module, attribute, self.make)

        spec.loader.exec_module = exec_module
        return spec


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
    warns("integrations.accelerate.prepare", "data.exact")


@mutant(ACCELERATE)
def a_batch_of_accelerate_is_repeated() -> None:
    """Each rank reads the first batch of its first loader a second time at the end."""
    loaders: list[Any] = []

    def make(original):
        def broken(accelerator, loader, **options):
            loaders.append(original(accelerator, loader, **options))
            if len(loaders) > 1:
                return loaders[-1]
            return Changed(loaders[0], lambda batches: [*batches, *batches[:1]])

        return broken

    Later("accelerate", "prepare", make=make)


@mutant(ACCELERATE)
def a_hang_of_the_model_is_not_foreseen() -> None:
    """Unequal batches are given to a model that waits for all ranks."""

    def make(original):
        def broken(accelerator, loader, *, equal_batches=None, **options):
            return original(accelerator, loader, equal_batches=bool(equal_batches), **options)

        return broken

    Later("accelerate", "prepare", make=make)


@mutant(FABRIC)
def batches_are_moved_always() -> None:
    """``move_to_device=False`` is ignored."""

    def make(original):
        return lambda *args, move_to_device=True, **options: original(*args, **options)

    Later("fabric", "setup_dataloaders", make=make)


@mutant(FABRIC)
def a_layout_is_ignored() -> None:
    """Loaders are dealt out to all ranks, also where ranks share samples."""

    def make(original):
        def broken(*args, **options):
            import distmetrics

            comm = distmetrics.current()
            with distmetrics.use(getattr(comm, "whole", comm)):
                return original(*args, **options)

        return broken

    Later("fabric", "setup_dataloaders", make=make)


@mutant(LIGHTNING)
def names_of_metrics_are_ignored() -> None:
    """A metric that ``SyncMetrics`` is told to sync keeps its local value."""

    def make(original):
        def broken(self, metrics=None, **options):
            original(self, [] if options.get("allow_pickle") else metrics, **options)

        return broken

    Later("lightning", "SyncMetrics.__init__", make=make)


@mutant(LIGHTNING)
def lightning_stays_changed() -> None:
    """A trainer deals out without repeats also when the callback has been taken off."""
    names = ("SyncMetrics.teardown", "SyncMetrics.on_exception")
    Later("lightning", *names, make=lambda original: lambda self, *args, **options: None)


@mutant(LIGHTNING)
def a_late_update_is_lost() -> None:
    """An update after the sync of the epoch is in no value, without a word."""

    def make(original):
        def broken(self, *args, **options):
            try:
                original(self, *args, **options)
            except Exception as error:
                if "updated after" not in str(error):
                    raise

        return broken

    Later("lightning", "SyncMetrics.on_validation_end", make=make)


@mutant(TRANSFORMERS)
def weights_are_ignored() -> None:
    """``weight=`` changes nothing."""

    def make(original):
        def broken(trainer, metrics=None, *, weight=None, **options):
            return original(trainer, metrics, **options)

        return broken

    Later("transformers", "attach", make=make)


@mutant(TRANSFORMERS)
def metrics_are_not_reset() -> None:
    """Metrics go on from one evaluation to the next."""

    def make(original):
        def broken(trainer, metrics=None, **options):
            if isinstance(metrics, dict) and "loss" not in metrics:
                for metric in metrics.values():
                    metric.reset = metric.compute
            return original(trainer, metrics, **options)

        return broken

    Later("transformers", "attach", make=make)


@mutant(TRANSFORMERS)
def the_trainer_keeps_the_metrics() -> None:
    """``detach`` leaves everything on the trainer."""
    Later("transformers", "Attachment.detach", make=lambda original: lambda self: None)


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

    def make(original):
        return lambda self, *args, **options: None

    Later(home("LogMetrics"), "LogMetrics.on_train_end", make=make)


@mutant(f"{LOG}[by_accelerate]")
def a_row_is_written_in_every_step() -> None:
    """``every=`` of ``attach_log`` is ignored."""

    def make(original):
        return lambda accelerator, log, *, every=50: original(accelerator, log, every=1)

    Later("accelerate", "attach_log", make=make)
