"""The loaders of one call of the trainer: passed, a data module's, or the module's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from distmetrics.arguments import describe
from distmetrics.errors import ConfigurationError
from distmetrics.train.data import DataModule

Call = Literal["fit", "validate", "test", "predict"]
_STAGES = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}


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
