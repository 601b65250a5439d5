"""The trainer: flags, and the four things that it does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distmetrics.arguments import refuse_unknown
from distmetrics.errors import ConfigurationError
from distmetrics.launch.environment import ClusterEnvironment
from distmetrics.log.writers import Logger
from distmetrics.run.callbacks import Callback, chosen_callbacks
from distmetrics.run.config import OTHER_TRAINERS, Limit, TrainerConfig, chosen_loggers
from distmetrics.run.context import LoopProgress, RunContext
from distmetrics.run.data import DataModule, TrainerCall
from distmetrics.run.module import Module, require
from distmetrics.run.runner import Runner
from distmetrics.run.session import launch, launch_evaluation
from distmetrics.run.values import LoggedValues
from distmetrics.strategies.base import Layout, Strategy
from distmetrics.strategies.devices import Devices


class Trainer(RunContext):
    """Trains and evaluates a :class:`Module`, on one device or many.

    Args:
        strategy: how the model is split over devices: a name such as "single", "dp", "ddp",
            "ddp_sharded" or "fsdp", a :class:`~distmetrics.strategies.base.Strategy`, or "auto":
            "ddp" under a launcher such as torchrun, else "single" for one device and "ddp_spawn"
            for several.
        devices: number of devices on this machine, a list of their numbers or such as "1, 4", or -1
            for all; "auto" is the launcher's number of processes, else every GPU, else 1.
        accelerator: "cpu", "gpu", "cuda", "tpu", or "auto": GPUs where there are any.
        num_nodes: number of machines, on each of which a launcher starts the script.
        precision: 64, 32, 16, "bf16", "16-mixed", "bf16-mixed", "64-true", "bf16-true" or
            "16-true"; None and 32 convert nothing.
        plugins: your own :class:`~distmetrics.launch.environment.ClusterEnvironment`.
        gpus: short for ``devices`` with ``accelerator="gpu"``.
        tpu_cores: short for ``devices`` with ``accelerator="tpu"``.
        max_epochs: train for so many epochs; None and -1 are no limit.
        max_steps: train for so many optimizer steps; -1 is no limit.
        limit_train_batches: use so many batches of each epoch on each rank, or a part (up to 1.0).
        limit_val_batches: the same for each loader of a validation.
        limit_test_batches: the same for each loader of a test.
        limit_predict_batches: the same for each loader of a prediction.
        val_check_interval: validate after so many steps of an epoch, or after each such fraction of
            it (a float); 1.0 is its end.
        check_val_every_n_epoch: validate in every n-th epoch.
        num_sanity_val_steps: run so many batches of validation before training, -1 for all; values,
            metric states and random numbers stay as they were.
        accumulate_grad_batches: step the optimizer once for so many batches, with the mean of their
            gradients; at the end of an epoch for those that are left.
        gradient_clip_val: clip the norm of the gradients to this.
        callbacks: called in their order, those that save checkpoints last.
        logger: loggers, or True for a ``CSVLogger`` in ``default_root_dir``.
        log_every_n_steps: loggers get the values of every n-th step; values of epochs always.
        default_root_dir: where files go; default the current folder.
        enable_progress_bar: None shows it where rich is installed and standard error is a terminal.
        enable_model_summary: a table of the module before a fit; None likewise.
        enable_checkpointing: True adds a ``ModelCheckpoint`` if there is none; False refuses one.
        fast_dev_run: run one batch of everything, or so many, without loggers and checkpoints.
        seed: of all random generators, to which the rank is added; default that of
            :func:`seed_everything`.
        deterministic: use torch's deterministic algorithms; "warn" warns where there is none.
        detect_anomaly: let autograd name the operation that made a NaN; slow.
        terminate_on_nan: end training on every rank when a loss is not finite; one exchange a step.
        require_same_names: refuse, on every rank, a name that some ranks log in every batch and
            others in none, where each had two batches or more; False only warns.
        allow_pickle: let ranks that trust each other send objects of any class, as pickles.
        use_distributed_sampler: deal out the samples of loaders to the ranks; False leaves them.
        layout: what ranks hold along the axes of a mesh, where some hold the same samples: data is
            dealt out to its shards, and what is logged goes over it. Sizes by the usual names,
            ``{"dp": 2, "tp": 2}``; roles of the strategy's mesh,
            ``{"replicate": "shard", "shard": "same"}``; or a function that returns a
            :class:`~distmetrics.layout`.

    Its attributes, such as ``callback_metrics`` and ``global_step``, are those of
    :class:`RunContext`.

    Raises:
        ConfigurationError: flags contradict each other, or one is of another library's trainer.

    >>> from distmetrics.train import Module
    >>> class Slope(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(1, 1)
    ...     def training_step(self, batch, batch_idx):
    ...         loss = (self.layer(batch) - 2 * batch).square().mean()
    ...         self.log("loss", loss, on_step=False, on_epoch=True)
    ...         return loss
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> trainer = Trainer(strategy="single", max_epochs=2, enable_model_summary=False)
    >>> trainer.fit(Slope(), [torch.ones(4, 1), torch.zeros(4, 1)])
    >>> trainer.global_step, sorted(trainer.callback_metrics)
    (4, ['loss'])
    """

    def __init__(
        self,
        *,
        strategy: str | Strategy | type[Strategy] = "auto",
        devices: Devices = "auto",
        accelerator: str = "auto",
        num_nodes: int = 1,
        precision: int | str | None = None,
        plugins: ClusterEnvironment | Sequence[ClusterEnvironment] = (),
        gpus: Devices = None,
        tpu_cores: Devices = None,
        max_epochs: int | None = None,
        max_steps: int = -1,
        limit_train_batches: Limit = None,
        limit_val_batches: Limit = None,
        limit_test_batches: Limit = None,
        limit_predict_batches: Limit = None,
        val_check_interval: int | float = 1.0,
        check_val_every_n_epoch: int = 1,
        num_sanity_val_steps: int = 0,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        logger: Logger | Sequence[Logger] | bool | None = None,
        log_every_n_steps: int = 50,
        default_root_dir: str | Path | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        enable_checkpointing: bool | None = None,
        fast_dev_run: bool | int = False,
        seed: int | None = None,
        deterministic: bool | str = False,
        detect_anomaly: bool = False,
        terminate_on_nan: bool = False,
        require_same_names: bool = True,
        allow_pickle: bool = False,
        use_distributed_sampler: bool = True,
        layout: Layout = None,
        **unknown: Any,
    ) -> None:
        flags = dict(locals())
        refuse_unknown(Trainer, unknown, OTHER_TRAINERS)
        self.config = TrainerConfig.of(flags)
        self.runner = Runner(
            strategy=strategy,
            devices=devices,
            accelerator=accelerator,
            num_nodes=num_nodes,
            precision=precision,
            plugins=plugins,
            gpus=gpus,
            tpu_cores=tpu_cores,
            layout=layout,
        )
        self.callbacks: list[Callback] = chosen_callbacks(callbacks, self.config)
        self.loggers = chosen_loggers(logger, self.config)
        self.progress = LoopProgress()
        self.values = LoggedValues()
        self.should_stop = False
        self.sanity_checking = False
        self.num_batches = None
        self.absent_ranks = 0
        self.datamodule = None
        self.fit_state = None
        self.log = None
        self.run = None

    def __getstate__(self) -> dict[str, Any]:
        of_the_call = ("datamodule", "fit_state", "log", "run")
        return vars(self) | dict.fromkeys(of_the_call)

    def fit(
        self,
        module: Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        *,
        datamodule: DataModule | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool = True,
    ) -> None:
        """Train the module, and validate it after each epoch if there is data for that.

        Args:
            module: what to train; afterwards it has the trained weights, whatever the strategy.
            train_dataloaders: a loader, or a data module. Its batch size is each rank's.
            val_dataloaders: a loader or a list of several.
            datamodule: the data, in the place of loaders.
            ckpt_path: go on from this checkpoint as if there had been no break; "best" or "last" is
                that of a ``ModelCheckpoint``. Without a last one the fit starts anew.
            weights_only: False also unpickles objects of any class: only for files that you trust.

        Raises:
            ConfigurationError: flags, module or data do not fit together.
            Exception: the error of the rank that failed first; the others are ended.
        """
        require(module, "training_step", "configure_optimizers")
        if not self.config.has_end:
            raise ConfigurationError("the trainer has no end", do="say max_epochs or max_steps.")
        loaders = train_dataloaders, val_dataloaders
        launch(self, module, TrainerCall("fit", *loaders, datamodule, ckpt_path, weights_only))

    def validate(
        self,
        module: Module,
        dataloaders: Any = None,
        *,
        datamodule: DataModule | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool = True,
        verbose: bool | None = None,
    ) -> list[dict[str, float]]:
        """Evaluate the module by its ``validation_step``, every sample once.

        Args:
            module: what to evaluate.
            dataloaders: a loader, a list of several, or a data module.
            datamodule: the data, in the place of loaders.
            ckpt_path: first give the module the weights of this checkpoint; "best" or "last" is one
                that a ``ModelCheckpoint`` of this trainer wrote.
            weights_only: as for :meth:`fit`.
            verbose: print a table of the results on rank 0; None prints it where rich is installed
                and standard output is a terminal.

        Returns:
            a dict of what was logged for each loader, the numbers of one process on every rank.

        Raises:
            ConfigurationError: as for :meth:`fit`.
            Exception: as for :meth:`fit`.
        """
        call = TrainerCall("validate", dataloaders, None, datamodule, ckpt_path, weights_only)
        return launch_evaluation(self, module, call, verbose=verbose)

    def test(
        self,
        module: Module,
        dataloaders: Any = None,
        *,
        datamodule: DataModule | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool = True,
        verbose: bool | None = None,
    ) -> list[dict[str, float]]:
        """Evaluate the module by its ``test_step``; arguments and result as of :meth:`validate`."""
        call = TrainerCall("test", dataloaders, None, datamodule, ckpt_path, weights_only)
        return launch_evaluation(self, module, call, verbose=verbose)

    def predict(
        self,
        module: Module,
        dataloaders: Any = None,
        *,
        datamodule: DataModule | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool = True,
        return_predictions: bool = True,
    ) -> list[Any] | None:
        """Return what ``predict_step`` returns for each batch, in the order of the data.

        Every rank gets the predictions of all, on the CPU. Each sample is predicted once. Batches
        are those of the ranks' parts, so where they are cut depends on the number of ranks; the
        order of their samples does not. A rank without data takes part.

        Args:
            module: what to predict with.
            dataloaders: a loader, a list of several, or a data module.
            datamodule: the data, in the place of loaders.
            ckpt_path: as for :meth:`validate`.
            weights_only: as for :meth:`fit`.
            return_predictions: False returns None, for hooks that keep what they need.

        Returns:
            a list with an item for each batch; with several loaders a list of such lists.

        Raises:
            ConfigurationError: as for :meth:`fit`.
            Exception: as for :meth:`fit`.
        """
        require(module)
        options = ckpt_path, weights_only, return_predictions
        call = TrainerCall("predict", dataloaders, None, datamodule, *options)
        results: list[list[Any]] | None = launch(self, module, call)
        return results[0] if results is not None and len(results) == 1 else results
