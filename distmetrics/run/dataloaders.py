"""What the user asks of the trainer: the call, its loaders, and the data module."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from distmetrics.arguments import FLAG, PATH, check, describe
from distmetrics.errors import ConfigurationError
from distmetrics.run.context import RunContext
from distmetrics.run.hparams import WithHparams

Kind = Literal["fit", "validate", "test", "predict"]
_METHODS = {
    "fit": "train_dataloader",
    "validate": "val_dataloader",
    "test": "test_dataloader",
    "predict": "predict_dataloader",
}
_TAKES = {
    "ckpt_path": PATH._replace(wanted="the path of a checkpoint, 'best' or 'last'").or_none(),
    "weights_only": FLAG,
    "return_predictions": FLAG,
}


class DataModule(WithHparams):
    """The data of a task, apart from the model: override what the task has.

    Attributes:
        trainer: the trainer that uses it, while it does: for shards of one's own,
            ``self.trainer.global_rank``.
    """

    trainer: RunContext | None = None

    def prepare_data(self) -> None:
        """Called once a machine, before ``setup``: download here, and set nothing on ``self``."""

    def setup(self, stage: str) -> None:
        """Called on every rank: make data sets here.

        Args:
            stage: "fit", "validate", "test" or "predict".
        """

    def teardown(self, stage: str) -> None:
        """Called on every rank after ``stage``."""

    def train_dataloader(self) -> Any:
        """Return the loader to train on."""
        return None

    def val_dataloader(self) -> Any:
        """Return the loader to validate on, or a list of several."""
        return None

    def test_dataloader(self) -> Any:
        """Return the loader to test on, or a list of several."""
        return None

    def predict_dataloader(self) -> Any:
        """Return the loader to predict on, or a list of several."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""


@dataclass
class Call:
    """What the user asks of the trainer; a data module may come in the place of the loaders.

    Attributes:
        kind: "fit", "validate", "test" or "predict".
        dataloaders: to train on, or to evaluate on.
        val_dataloaders: to validate on in a fit.
        datamodule: the data, in the place of loaders.
        ckpt_path: the checkpoint to begin with: a file, "best", "last", or None.
        weights_only: True if that may hold nothing but tensors and plain values.
        return_predictions: True if predictions are returned.

    Raises:
        ConfigurationError: loaders and a data module, or something of the wrong kind.
    """

    kind: Kind
    dataloaders: Any = None
    val_dataloaders: Any = None
    datamodule: DataModule | None = None
    ckpt_path: str | Path | None = None
    weights_only: bool = True
    return_predictions: bool = True

    def __post_init__(self) -> None:
        check("Trainer", vars(self), _TAKES)
        if isinstance(self.dataloaders, DataModule):
            self.dataloaders, self.datamodule = None, self.dataloaders
        if self.datamodule is None:
            return
        if not isinstance(self.datamodule, DataModule):
            raise ConfigurationError(
                "datamodule= takes an object of DataModule or a subclass, got "
                f"{describe(self.datamodule)}",
                do="datamodule=YourData(), or pass loaders.",
            )
        if not (self.dataloaders is None and self.val_dataloaders is None):
            raise ConfigurationError(
                f"{self.kind} got loaders and a data module", do="pass one of them."
            )

    def loaders(self, module: Any) -> list[Any]:
        """Return the loaders to train or to evaluate on.

        Raises:
            ConfigurationError: there is none, or there are several to train on.
        """
        method = _METHODS[self.kind]
        loaders = _as_list(self._passed_or_of(method, self.dataloaders, module))
        if self.kind == "fit" and len(loaders) != 1:
            raise ConfigurationError(
                f"there must be one training loader, and there are {len(loaders)}",
                do="pass train_dataloaders=..., or a data module with a train_dataloader.",
            )
        if not loaders:
            what, do = "", f"pass loaders, or a data module that has a {method}."
            if self.datamodule is not None:
                name = type(self.datamodule).__name__
                what = f": {name} has no {method}, or it returned nothing"
                do = f"override {method}, or pass loaders."
            raise ConfigurationError(f"there is nothing to {self.kind} on{what}", do=do)
        return loaders

    def loaders_to_validate(self, module: Any) -> list[Any]:
        """Return the loaders that a fit validates on; none where there are none."""
        return _as_list(self._passed_or_of("val_dataloader", self.val_dataloaders, module))

    def _passed_or_of(self, method: str, passed: Any, module: Any) -> Any:
        """Return what the user has passed, else what the data module or the module returns."""
        owner = module if self.datamodule is None else self.datamodule
        if passed is not None or not hasattr(owner, method):
            return passed
        return getattr(owner, method)()


def _as_list(loaders: Any) -> list[Any]:
    """Return the loaders as a list; a list of other things is one loader, of batches."""
    if loaders is None:
        return []
    is_list = isinstance(loaders, list | tuple) and bool(loaders)
    if is_list and all(isinstance(item, DataLoader) for item in loaders):
        return list(loaders)
    is_map = isinstance(loaders, Dataset) and not isinstance(loaders, IterableDataset)
    is_data = isinstance(loaders, Mapping | str | bytes | Tensor)
    if is_map or is_data or not hasattr(loaders, "__iter__"):
        example = (
            "DataLoader(dataset, batch_size=...)" if is_map else "a DataLoader, or a list of such"
        )
        raise ConfigurationError(
            f"a loader yields batches, and this is {describe(loaders)}", do=f"pass {example}."
        )
    return [loaders]
