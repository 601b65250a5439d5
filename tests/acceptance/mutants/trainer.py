"""The trainer and its strategies, broken in one place at a time."""

from __future__ import annotations

import os

from tests.acceptance.mutants import mutant, patch


def _flags(change):
    """Change the trainer's flags before it takes them."""
    from distmetrics.train import Trainer

    def make(original):
        return lambda self, **flags: original(self, **change(flags))

    patch(Trainer, "__init__", make)


@mutant("test_trainer.py::test_logged_values_are_those_of_one_process")
def batches_weigh_alike() -> None:
    """A logged mean counts every batch alike, whatever its size."""
    import torch

    from distmetrics.train import Module

    def make(original):
        def broken(self, name, value, **options):
            if isinstance(value, torch.Tensor) and "reduce_fx" not in options:
                options.setdefault("batch_size", 1)
            return original(self, name, value, **options)

        return broken

    patch(Module, "log", make)


@mutant("test_trainer.py::test_logged_values_are_those_of_one_process")
def steps_are_not_synced() -> None:
    """``sync_dist=True`` in a training step keeps the rank's own value."""
    from distmetrics.train import Module

    def make(original):
        def broken(self, name, value, **options):
            if options.get("sync_dist"):
                options["sync_dist"] = None
            return original(self, name, value, **options)

        return broken

    patch(Module, "log", make)


@mutant("test_trainer.py::test_loggers_write_on_rank_0_alone")
def hidden_values_are_written() -> None:
    """``self.log(..., logger=False)`` hides nothing from the loggers."""
    from distmetrics.train import Module

    def make(original):
        return lambda self, name, value, **options: original(
            self, name, value, **options | {"logger": True}
        )

    patch(Module, "log", make)


@mutant("test_trainer.py::test_loggers_write_on_rank_0_alone")
def a_row_is_lost() -> None:
    """The CSV file lacks what was logged at step 2."""
    from distmetrics.train import CSVLogger

    def make(original):
        return lambda self, metrics, step: original(self, metrics, step) if step != 2 else None

    patch(CSVLogger, "log_metrics", make)


@mutant(
    "test_trainer.py::test_each_sample_is_evaluated_and_predicted_once_in_order",
    "test_strategies.py::test_every_strategy_ends_with_the_weights_and_numbers_of_one_process",
)
def the_last_sample_is_another() -> None:
    """In an evaluation a rank has its first sample, or batch, in the place of its last."""
    from distmetrics.train import EvaluationSampler

    def make(original):
        def broken(self):
            indices = list(original(self))
            return iter(indices[:-1] + indices[:1])

        return broken

    patch(EvaluationSampler, "__iter__", make)


@mutant("test_trainer.py::test_each_sample_is_evaluated_and_predicted_once_in_order")
def predictions_come_by_parity() -> None:
    """Predictions of every second batch come first."""
    from distmetrics.train import Trainer

    def make(original):
        def broken(self, *args, **options):
            found = original(self, *args, **options)
            return found and found[::2] + found[1::2]

        return broken

    patch(Trainer, "predict", make)


@mutant("test_trainer.py::test_hooks_come_in_order_on_every_rank_the_modules_own_first")
def the_end_of_a_fit_is_told_twice() -> None:
    """Callbacks hear of a fit's end once more, after ``teardown``."""
    from distmetrics.train import Trainer

    def make(original):
        def broken(self, module, *args, **options):
            original(self, module, *args, **options)
            for callback in self.callbacks:
                callback.on_fit_end(self, module)

        return broken

    patch(Trainer, "fit", make)


@mutant("test_trainer.py::test_the_best_are_kept_and_all_ranks_stop_in_the_same_epoch")
def the_worst_are_kept() -> None:
    """``ModelCheckpoint`` takes the largest value for the worst where it is the best."""
    from distmetrics.train import ModelCheckpoint

    def make(original):
        def broken(self, *args, mode="min", **options):
            original(self, *args, mode="min", **options)

        return broken

    patch(ModelCheckpoint, "__init__", make)


@mutant("test_trainer.py::test_the_best_are_kept_and_all_ranks_stop_in_the_same_epoch")
def stopping_takes_an_epoch_more() -> None:
    """``EarlyStopping`` has more patience than it was given."""
    from distmetrics.train import EarlyStopping

    def make(original):
        def broken(self, *args, patience=3, **options):
            original(self, *args, patience=patience + 1, **options)

        return broken

    patch(EarlyStopping, "__init__", make)


@mutant("test_trainer.py::test_ranks_that_log_differently_get_one_error")
def names_of_some_ranks_are_let_pass() -> None:
    """A name that one rank logs in every batch, and another in none, is a warning at most."""
    _flags(lambda flags: flags | {"require_same_names": False})


@mutant("test_trainer.py::test_flags_say_how_much_is_done")
def a_limit_is_ignored() -> None:
    """``limit_train_batches`` limits nothing."""
    _flags(lambda flags: {**flags, "limit_train_batches": None})


@mutant("test_trainer.py::test_flags_that_make_no_sense_or_are_not_here_are_errors_that_name_them")
def flags_of_others_are_swallowed() -> None:
    """``profiler=`` is taken, and does nothing."""
    _flags(lambda flags: {name: value for name, value in flags.items() if name != "profiler"})


@mutant("test_trainer.py::test_a_fit_that_goes_on_ends_bit_for_bit_as_if_nothing_had_happened")
def pythons_generator_is_not_put_back() -> None:
    """A fit that goes on draws other numbers from Python's generator."""
    import random

    patch(random, "setstate", lambda original: lambda state: None)


@mutant(
    "test_strategies.py::test_a_checkpoint_of_one_strategy_goes_on_under_another",
    "test_trainer.py::test_a_fit_that_goes_on_ends_bit_for_bit_as_if_nothing_had_happened",
)
def a_fit_never_goes_on() -> None:
    """``fit(ckpt_path=...)`` begins from the beginning."""
    from distmetrics.train import Trainer

    def make(original):
        return lambda self, *args, **options: original(self, *args, **options | {"ckpt_path": None})

    patch(Trainer, "fit", make)


@mutant("test_trainer.py::test_checks_of_numbers_and_seeds_are_put_in_force")
def numpy_is_not_seeded() -> None:
    """``seed_everything`` forgets numpy."""
    import numpy as np

    import distmetrics.train

    def make(original):
        def broken(seed, **options):
            state = np.random.get_state()
            found = original(seed, **options)
            np.random.set_state(state)
            return found

        return broken

    patch(distmetrics.train, "seed_everything", make)


@mutant("test_strategies.py::test_options_change_no_number")
def batches_are_stepped_one_by_one() -> None:
    """``accumulate_grad_batches`` is taken for 1."""
    _flags(lambda flags: flags | {"accumulate_grad_batches": 1})


@mutant("test_strategies.py::test_a_rank_that_has_run_out_of_batches_changes_no_step")
def steps_of_some_ranks_are_left_out() -> None:
    """An epoch ends on every rank with that of the rank with the fewest batches."""
    import distmetrics
    from distmetrics.train import Trainer

    def make(original):
        def broken(self, module, train_dataloaders=None, *args, **options):
            if isinstance(train_dataloaders, list) and distmetrics.current().world_size > 1:
                counts = distmetrics.all_gather_object(len(train_dataloaders))
                train_dataloaders = train_dataloaders[: max(1, min(counts))]
            return original(self, module, train_dataloaders, *args, **options)

        return broken

    patch(Trainer, "fit", make)


@mutant("test_strategies.py::test_a_rank_that_fails_ends_the_job_and_is_named")
def a_lost_rank_has_no_number() -> None:
    """The error of a rank that was killed does not say which."""
    from distmetrics import PeerLostError

    patch(PeerLostError, "__str__", lambda original: lambda self: "a rank was lost")


@mutant("test_strategies.py::test_processes_that_a_launcher_started_meet_and_end_together")
def lsf_is_unknown() -> None:
    """A process that jsrun has started takes itself for the only one."""
    from distmetrics import Runner

    def make(original):
        def broken(self, **flags):
            for name in [name for name in os.environ if name.startswith("JSM_")]:
                del os.environ[name]
            original(self, **flags)

        return broken

    patch(Runner, "__init__", make)
