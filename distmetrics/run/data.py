"""What the user asks of the trainer: the call, its loaders, and the data module."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor
from torch.utils.data import DataLoader

from distmetrics.arguments import PATH, Takes, describe
from distmetrics.errors import ConfigurationError
from distmetrics.run.config import Flag, check_fields
from distmetrics.run.context import RunContext
from distmetrics.run.module import WithHparams


class DataModule(WithHparams):
    """The data of a task, apart from the model: override what the task has.

    Attributes:
        trainer: the trainer that uses it, or None; it has ``global_rank``, for shards of your own.

    >>> from torch.utils.data import DataLoader
    >>> class Digits(DataModule):
    ...     def setup(self, stage):
    ...         self.data = torch.arange(10)
    ...     def train_dataloader(self):
    ...         return DataLoader(self.data, batch_size=4)
    >>> data = Digits()  # trainer.fit(model, datamodule=data)
    >>> data.setup("fit")
    >>> [len(batch) for batch in data.train_dataloader()]
    [4, 4, 2]
    """

    trainer: RunContext | None = None

    def prepare_data(self) -> None:
        """Called once a machine, before ``setup``: download here, and set nothing on ``self``."""

    def setup(self, stage: str) -> None:
        """Called on every rank: make data sets for "fit", "validate", "test" or "predict"."""

    def teardown(self, stage: str) -> None:
        """Called on every rank after ``stage``."""

    def train_dataloader(self) -> Any:
        """Return the loader of this stage; to evaluate, it may be a list of several."""
        return None

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""


_METHODS = {
    "fit": "train_dataloader",
    "validate": "val_dataloader",
    "test": "test_dataloader",
    "predict": "predict_dataloader",
}
_DATA = Takes(lambda value: isinstance(value, DataModule), "an object of DataModule or a subclass")
_CHECKPOINT = PATH._replace(wanted="the path of a checkpoint, 'best' or 'last'")


@dataclass
class TrainerCall:
    """What the user asks of the trainer; a data module may come in the place of the loaders."""

    kind: Literal["fit", "validate", "test", "predict"]
    dataloaders: Any = None
    val_dataloaders: Any = None
    datamodule: Annotated[DataModule | None, _DATA.or_none()] = None
    ckpt_path: Annotated[str | Path | None, _CHECKPOINT.or_none()] = None
    weights_only: Flag = True
    return_predictions: Flag = True

    def __post_init__(self) -> None:
        check_fields(self, "Trainer")
        if isinstance(self.dataloaders, DataModule):
            self.dataloaders, self.datamodule = None, self.dataloaders
        has_loaders = self.dataloaders is not None or self.val_dataloaders is not None
        if self.datamodule is not None and has_loaders:
            raise ConfigurationError(
                f"{self.kind} got loaders and a data module", do="pass one of them."
            )

    def loaders(self, module: Any) -> list[Any]:
        """Return the loaders to train or to evaluate on: at least one, and only one to train on."""
        method = _METHODS[self.kind]
        loaders = self._loaders(method, self.dataloaders, module)
        if not loaders or (self.kind == "fit" and len(loaders) > 1):
            wanted = "one training loader" if self.kind == "fit" else f"a loader to {self.kind} on"
            raise ConfigurationError(
                f"there must be {wanted}, and there are {len(loaders)}",
                do=f"pass it, or override {method} in the data module or the module.",
            )
        return loaders

    def loaders_to_validate(self, module: Any) -> list[Any]:
        """Return the loaders that a fit validates on; none where there are none."""
        return self._loaders("val_dataloader", self.val_dataloaders, module)

    def _loaders(self, method: str, passed: Any, module: Any) -> list[Any]:
        """Return what the user has passed, else what the data module or the module returns."""
        owner = module if self.datamodule is None else self.datamodule
        loaders = passed
        if loaders is None and hasattr(owner, method):
            loaders = getattr(owner, method)()
        if loaders is None:
            return []
        if isinstance(loaders, list | tuple) and isinstance(next(iter(loaders), None), DataLoader):
            return list(loaders)
        is_data = isinstance(loaders, Mapping | str | bytes | Tensor)
        if is_data or not hasattr(loaders, "__iter__"):
            raise ConfigurationError(
                f"a loader yields batches, and this is {describe(loaders)}",
                do="pass DataLoader(dataset, batch_size=...), or a list of such.",
            )
        return [loaders]  # a list of other things is one loader, of batches
