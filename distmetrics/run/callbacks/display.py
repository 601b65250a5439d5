"""What a person sees: how far a run is, what a model consists of, the results of an evaluation."""

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from torch import nn

from distmetrics.arguments import Takes, check, whole
from distmetrics.errors import MissingDependencyError
from distmetrics.run.callbacks.base import Callback
from distmetrics.run.context import RunContext
from distmetrics.run.module import Module


class ProgressBar(Callback):
    """A bar for each epoch on rank 0's standard error, with what is logged with ``prog_bar=True``.

    Raises:
        MissingDependencyError: rich is not installed.
    """

    def __init__(self) -> None:
        wanted(True, "the progress bar")
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        self._stage = ""

    def setup(self, trainer: RunContext, module: Module, stage: str) -> None:
        """Put up the display."""
        if not trainer.is_global_zero:
            return
        from rich import progress
        from rich.console import Console

        self._stage = "validation" if stage in ("fit", "validate") else stage
        self._progress = progress.Progress(
            "{task.description}",
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            "{task.fields[values]}",
            console=Console(stderr=True),
        )
        self._progress.start()

    def teardown(self, trainer: RunContext, module: Module, stage: str) -> None:
        """Take it down."""
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._tasks = None, {}

    def on_train_epoch_start(self, trainer: RunContext, module: Module) -> None:
        """Start a bar."""
        self._begin("train", f"epoch {trainer.current_epoch}", trainer)

    def on_train_batch_end(
        self,
        trainer: RunContext,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Move the bar on."""
        self._advance("train", trainer)

    def on_validation_epoch_start(self, trainer: RunContext, module: Module) -> None:
        """Start a bar; within an epoch it takes the place of the one before."""
        if trainer.values.within_epochs and self._stage in self._tasks:
            self._progress.remove_task(self._tasks[self._stage])
        self._begin(self._stage, self._stage, trainer)

    def on_validation_batch_end(
        self,
        trainer: RunContext,
        module: Module,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Move the bar on."""
        self._advance(self._stage, trainer)

    on_test_epoch_start = on_predict_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def _begin(self, stage: str, title: str, trainer: RunContext) -> None:
        if self._progress is not None:
            total = trainer.num_batches
            self._tasks[stage] = self._progress.add_task(title, total=total, values="")

    def _advance(self, stage: str, trainer: RunContext) -> None:
        if stage in self._tasks:
            shown = set() if trainer.log is None else trainer.log.prog_bar
            values = trainer.callback_metrics.items()
            parts = [f"{name} {float(value):.4g}" for name, value in values if name in shown]
            task = self._tasks[stage]
            self._progress.update(task, advance=1, values="  ".join(parts))


class ModelSummary(Callback):
    """Print a table of the model on rank 0 before a fit: names, types and numbers of parameters.

    Args:
        max_depth: how deep to look into submodules.

    Raises:
        MissingDependencyError: rich is not installed.
    """

    def __init__(self, max_depth: int = 1) -> None:
        rule = Takes(lambda value: whole(value, 0), "a whole number from 0 on")
        check("ModelSummary", locals(), {"max_depth": rule})
        wanted(True, "the model's table")
        self.max_depth = max_depth

    def on_fit_start(self, trainer: RunContext, module: Module) -> None:
        """Print it."""
        if trainer.is_global_zero:
            print_summary(module, self.max_depth)


def wanted(flag: bool | None, what: str, stream: Any = None) -> bool:
    """Resolve a flag for something that rich prints: None is True where a terminal and rich are.

    The terminal is that of ``stream``, by default standard error.

    Raises:
        MissingDependencyError: the flag is True, and rich is not installed.
    """
    has_rich = importlib.util.find_spec("rich") is not None
    if flag and not has_rich:
        raise MissingDependencyError.of("rich", what)
    stream = stream or sys.stderr
    return (stream is not None and stream.isatty() and has_rich) if flag is None else flag


def print_summary(module: nn.Module, depth: int) -> None:
    """Print a model's parts down to ``depth``, their numbers of parameters, and their size."""
    parameters = list(module.parameters())
    total = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    size = sum(p.nbytes for p in parameters)
    rows: list[list[str]] = []
    for name, part in module.named_modules():
        if name and name.count(".") < depth:
            count = sum(p.numel() for p in part.parameters())
            rows.append([str(len(rows)), name, type(part).__name__, f"{count:,}"])
    _print(
        ["", "Name", "Type", "Params"],
        rows,
        f"{trained:<12,} Trainable params",
        f"{total - trained:<12,} Non-trainable params",
        f"{total:<12,} Total params",
        f"{size / 1e6:<12.3f} Total estimated model params size (MB)",
    )


def print_results(call: str, results: Sequence[dict[str, float]], verbose: bool | None) -> None:
    """Print the results of an evaluation if they are wanted, a column a loader."""
    if not wanted(verbose, "the table of results", sys.stdout):
        return
    names = dict.fromkeys(name for result in results for name in result)
    rows = []
    for name in names:
        cells = [f"{result[name]:.6g}" if name in result else "" for result in results]
        rows.append([name, *cells])
    loaders = [f"DataLoader {index}" for index in range(len(results))]
    _print([f"{call} metric", *loaders], rows)


def _print(header: Sequence[str], rows: Sequence[Sequence[str]], *lines: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in header:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(file=sys.stdout)
    for part in (table, *lines):
        console.print(part, highlight=False)
