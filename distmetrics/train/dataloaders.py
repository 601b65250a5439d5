"""The user's data module, and the loaders of one call of the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from distmetrics.arguments import describe
from distmetrics.errors import ConfigurationError
from distmetrics.train.context import RunContext
from distmetrics.train.hparams import WithHparams

Call = Literal["fit", "validate", "test", "predict"]
_STAGES = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}


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
class Dataloaders:
    """What the user passed to ``fit``, ``validate``, ``test`` or ``predict``."""

    train_dataloaders: Any = None
    val_dataloaders: Any = None
    test_dataloaders: Any = None
    predict_dataloaders: Any = None
    datamodule: DataModule | None = None

    @classmethod
    def of(
        cls, call: Call, loaders: Any, datamodule: DataModule | None, val: Any = None
    ) -> Dataloaders:
        """Return a call's arguments; a data module may also come in the place of the loaders.

        Raises:
            ConfigurationError: loaders and a data module.
        """
        if isinstance(loaders, DataModule):
            loaders, datamodule = None, loaders
        if datamodule is not None and not isinstance(datamodule, DataModule):
            raise ConfigurationError(
                "datamodule= takes an object of DataModule or a subclass, got "
                f"{describe(datamodule)}",
                do="datamodule=YourData(), or pass loaders.",
            )
        if datamodule is not None and not (loaders is None and val is None):
            raise ConfigurationError(
                f"{call} got loaders and a data module", do="pass one of them."
            )
        passed = {"val_dataloaders": val, f"{_STAGES[call]}_dataloaders": loaders}
        return cls(**passed, datamodule=datamodule)

    def passed(self, call: Call) -> Any:
        """Return what the user has passed to ``call`` on, or None."""
        return getattr(self, f"{_STAGES[call]}_dataloaders")

    def train(self, module: Any) -> Any:
        """Return the loader to train on.

        Raises:
            ConfigurationError: there is none, or several.
        """
        loaders = self.of_call("fit", module)
        if len(loaders) != 1:
            raise ConfigurationError(
                f"there must be one training loader, and there are {len(loaders)}",
                do="pass train_dataloaders=..., or a data module with a train_dataloader.",
            )
        return loaders[0]

    def of_call(self, call: Call, module: Any) -> list[Any]:
        """Return the loaders to ``call`` on; none where there are none."""
        method, loaders = f"{_STAGES[call]}_dataloader", self.passed(call)
        owner = module if self.datamodule is None else self.datamodule
        if loaders is None and hasattr(owner, method):
            loaders = getattr(owner, method)()
        return _as_list(loaders)

    def nothing_for(self, call: Call) -> ConfigurationError:
        """Return the error of an evaluation without a loader."""
        method = f"{_STAGES[call]}_dataloader"
        if self.datamodule is None:
            what, do = "", f"pass loaders, or a data module that has a {method}."
        else:
            what = f": {type(self.datamodule).__name__} has no {method}, or it returned nothing"
            do = f"override {method}, or pass loaders."
        return ConfigurationError(f"there is nothing to {call} on{what}", do=do)


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
