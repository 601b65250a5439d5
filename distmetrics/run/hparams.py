"""What a module or a data module was made with, kept for checkpoints and loggers."""

import inspect
from argparse import Namespace
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, TypeVar

from torch import nn

from distmetrics.arguments import FLAG, Takes, check
from distmetrics.errors import ConfigurationError

T = TypeVar("T")


class Hparams(dict[str, Any]):
    """A dict whose items are attributes too.

    >>> Hparams(lr=0.1).lr
    0.1
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"there is no hyperparameter {name!r}; there are: {', '.join(self)}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


_SAVED = Takes(
    lambda value: isinstance(value, Mapping | Namespace),
    "an argument's name, a mapping or a namespace",
    "name the arguments, each by itself: self.save_hyperparameters('lr', 'hidden').",
)
_NAMES = Takes(lambda value: isinstance(value, Iterable), "a name, or a list of names")


class WithHparams:
    """Adds ``save_hyperparameters`` and ``hparams``."""

    _hparams: Hparams | None = None
    _log_hparams: bool = True

    @property
    def hparams(self) -> Hparams:
        """What :meth:`save_hyperparameters` has kept; empty if nothing."""
        if self._hparams is None:
            self._hparams = Hparams()
        return self._hparams

    def save_hyperparameters(
        self,
        *names: Any,
        ignore: str | Iterable[str] = (),
        logger: bool = True,
    ) -> None:
        """Keep the arguments of ``__init__`` as ``self.hparams``; call it there.

        They go into checkpoints, so that ``load_from_checkpoint`` can make the object again, and to
        loggers. Modules among them are left out: their weights are in the checkpoint already.

        Args:
            names: names of the arguments to keep, or mappings and namespaces of what to keep;
                default all arguments, also those of a subclass whose ``__init__`` called this one.
            ignore: names not to keep.
            logger: whether loggers get them.

        Raises:
            ConfigurationError: a name is no argument.
        """
        rules = {"ignore": _NAMES, "logger": FLAG}
        check("save_hyperparameters", locals(), rules)
        frame = inspect.currentframe()
        arguments = _arguments(self, None if frame is None else frame.f_back)
        saved: dict[str, Any] = {} if names else arguments
        for name in names:
            if isinstance(name, str):
                if name not in arguments:
                    known = ", ".join(arguments) or "none"
                    raise ConfigurationError(
                        f"save_hyperparameters: {name!r} is no argument of __init__; there are: "
                        f"{known}"
                    )
                saved[name] = arguments[name]
            else:
                check("save_hyperparameters", {"each of names": name}, {"each of names": _SAVED})
                saved |= vars(name) if isinstance(name, Namespace) else dict(name)
        ignored = {ignore} if isinstance(ignore, str) else set(ignore)
        for name, value in saved.items():
            if name not in ignored and not isinstance(value, nn.Module):
                self.hparams[name] = value
        self._log_hparams = logger


def _arguments(owner: object, frame: FrameType | None) -> dict[str, Any]:
    """Return the arguments of the ``__init__`` in ``frame``, and of subclasses' that called it."""
    arguments = {}
    while frame is not None and frame.f_code.co_name == "__init__":
        info = inspect.getargvalues(frame)
        if not info.args or info.locals.get(info.args[0]) is not owner:
            break
        for name in info.args[1:]:
            if name in info.locals:
                arguments[name] = info.locals[name]
        if info.keywords is not None:
            arguments |= info.locals[info.keywords]
        frame = frame.f_back
    return arguments


def make(kind: type[T], saved: Mapping[str, Any], arguments: Mapping[str, Any]) -> T:
    """Return a new ``kind``, made with the saved hyperparameters that its ``__init__`` takes.

    Raises:
        ConfigurationError: an argument of it is neither saved nor among ``arguments``.
    """
    signature = inspect.signature(kind)
    names = signature.parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in names.values())
    taken = {name: value for name, value in saved.items() if takes_all or name in names}
    taken.update(arguments)
    try:
        signature.bind(**taken)
    except TypeError as error:
        raise ConfigurationError(
            f"{kind.__name__} can't be made from the checkpoint: {error}",
            likely="__init__ did not call self.save_hyperparameters(), or the argument is a "
            "module, never saved.",
            do="pass the argument to load_from_checkpoint.",
        ) from error
    return kind(**taken)
