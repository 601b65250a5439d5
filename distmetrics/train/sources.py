"""The data of one call of the trainer: loaders that were passed, a data module's, or the module's
own.
"""

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


@dataclass
class Sources:
    """What the user passed to ``fit``, ``validate``, ``test`` or ``predict``."""

    train_dataloaders: Any = None
    val_dataloaders: Any = None
    test_dataloaders: Any = None
    predict_dataloaders: Any = None
    datamodule: DataModule | None = None

    @classmethod
    def of(cls, call: Call, first: Any, val: Any, datamodule: DataModule | None) -> Sources:
        """Take a call's arguments; a data module may also come in the place of the loaders.

        Raises:
            ConfigurationError: loaders and a data module.
        """
        if isinstance(first, DataModule):
            first, datamodule = None, first
        if datamodule is not None and not isinstance(datamodule, DataModule):
            raise ConfigurationError(
                "datamodule= takes an object of DataModule or a subclass, got "
                f"{describe(datamodule)}",
                do="datamodule=YourData(), or pass loaders.",
            )
        if datamodule is not None and not (first is None and val is None):
            raise ConfigurationError(
                f"{call} got loaders and a data module", do="pass one of them."
            )
        if call == "fit":
            return cls(train_dataloaders=first, val_dataloaders=val, datamodule=datamodule)
        if call == "validate":
            return cls(val_dataloaders=first, datamodule=datamodule)
        if call == "predict":
            return cls(predict_dataloaders=first, datamodule=datamodule)
        return cls(test_dataloaders=first, datamodule=datamodule)

    def train(self, module: Any) -> Any:
        """Return the loader to train on.

        Raises:
            ConfigurationError: there is none, or several.
        """
        found = _several(self._find(self.train_dataloaders, "train_dataloader", module))
        if len(found) != 1:
            raise ConfigurationError(
                f"there must be one training loader, and there are {len(found)}",
                do="pass train_dataloaders=..., or a data module with a train_dataloader.",
            )
        return found[0]

    def val(self, module: Any) -> list[Any]:
        """Return the loaders to validate on."""
        return _several(self._find(self.val_dataloaders, "val_dataloader", module))

    def test(self, module: Any) -> list[Any]:
        """Return the loaders to test on."""
        return _several(self._find(self.test_dataloaders, "test_dataloader", module))

    def predict(self, module: Any) -> list[Any]:
        """Return the loaders to predict on."""
        return _several(self._find(self.predict_dataloaders, "predict_dataloader", module))

    def nothing_for(self, call: Call) -> ConfigurationError:
        """Return the error of an evaluation without a loader."""
        method = f"{'val' if call == 'validate' else call}_dataloader"
        if self.datamodule is None:
            what, do = "", f"pass loaders, or a data module that has a {method}."
        else:
            what = f": {type(self.datamodule).__name__} has no {method}, or it returned nothing"
            do = f"override {method}, or pass loaders."
        return ConfigurationError(f"there is nothing to {call} on{what}", do=do)

    def _find(self, given: Any, method: str, module: Any) -> Any:
        if given is not None:
            return given
        owner = module if self.datamodule is None else self.datamodule
        return getattr(owner, method)() if hasattr(owner, method) else None


def _several(loaders: Any) -> list[Any]:
    """Return the loaders as a list; a list of anything but loaders is one loader, whose items are
    the batches.
    """
    if loaders is None:
        return []
    if (
        isinstance(loaders, list | tuple)
        and loaders
        and all(isinstance(item, DataLoader) for item in loaders)
    ):
        return list(loaders)
    is_map = isinstance(loaders, Dataset) and not isinstance(loaders, IterableDataset)
    if (
        is_map
        or isinstance(loaders, Mapping | str | bytes | Tensor)
        or not hasattr(loaders, "__iter__")
    ):
        raise ConfigurationError(
            f"a loader yields batches, and this is {describe(loaders)}",
            do=f"pass {'DataLoader(dataset, batch_size=...)' if is_map else 'a DataLoader, or a list of such'}.",
        )
    return [loaders]
