"""What a loop can get wrong, refused before it does harm."""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from distmetrics.arguments import FLAG, POSITIVE_NUMBER, Takes, check, describe, is_number
from distmetrics.errors import ConfigurationError, InputError, InputTypeError
from distmetrics.run.wrapped import RunnerModule
from distmetrics.run.wrapped_loader import RunnerLoader
from distmetrics.run.wrapped_optimizer import RunnerOptimizer
from distmetrics.strategies.tensors import check_steps_some

_NUMBER = Takes(
    lambda value: is_number(value) or (isinstance(value, float) and value == math.inf), "a number"
)
_LIMIT = POSITIVE_NUMBER.or_none()
_TAKES = {
    "move_to_device": FLAG,
    "train": FLAG.or_none("None to tell by the sampler"),
    "replace_sampler": FLAG,
    "enabled": FLAG,
    "max_norm": _LIMIT,
    "clip_value": _LIMIT,
    "norm_type": _NUMBER,
}


def check_flags(who: str, values: Mapping[str, Any]) -> None:
    """Refuse flags of a runner's method that are of the wrong kind; other values are not looked at.

    Raises:
        ConfigurationError: there is such a flag.
    """
    rules = {name: rule for name, rule in _TAKES.items() if name in values}
    check(who, values, rules)


def check_function(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse to launch what does not take the runner and these arguments."""
    if not callable(fn):
        raise InputTypeError(f"launch takes a function fn(runner, ...), got {describe(fn)}")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # of a compiled callable: nothing is known beforehand
        return
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise InputTypeError(
            f"launch calls {name}(runner, ...) with what it got after it, and {name} takes "
            f"{signature}: {error}",
            do=f"def {name}(runner, ...), and pass launch its other arguments.",
        ) from None


def check_setup(model: Any, optimizers: Sequence[Any], known: Sequence[Any]) -> None:
    """Refuse what is no model, no optimizer of it, or ``known``: set up already."""
    for obj in (model, *optimizers):
        is_set_up = isinstance(obj, RunnerModule | RunnerOptimizer)
        if is_set_up or any(obj is other for other in known):
            raise ConfigurationError(
                f"this {type(obj).__name__} has been set up already",
                do="call setup once for each model.",
            )
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"setup takes a model, an nn.Module, first; got a {type(model).__name__}"
        )
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise InputTypeError(
                f"setup takes optimizers after the model, got a {type(optimizer).__name__}"
            )
        advice = "make it of model.parameters(), and set both up together."
        check_steps_some(optimizer, model, advice)


def check_set_up(who: str, model: Any, optimizer: Any = None) -> None:
    """Refuse a model, or an optimizer if one is given, that setup has not returned."""
    if not isinstance(model, RunnerModule):
        raise InputTypeError(
            f"{who} takes the model that setup returned, got a {type(model).__name__}"
        )
    if not isinstance(optimizer, RunnerOptimizer | None):
        raise InputTypeError(
            f"{who} takes the optimizer that setup returned, got a {type(optimizer).__name__}"
        )


def check_loader(loader: Any) -> None:
    """Refuse what is no loader, or set up already."""
    if isinstance(loader, RunnerLoader):
        raise ConfigurationError(
            "this loader has been set up already", do="call setup_dataloaders once."
        )
    others = (str, bytes, nn.Module, Optimizer)
    if isinstance(loader, others) or not hasattr(loader, "__iter__"):
        raise InputTypeError(f"setup_dataloaders takes loaders, got a {type(loader).__name__}")


def check_loss(loss: Any, model: Any, models: Sequence[RunnerModule]) -> None:
    """Refuse what is no loss of one of the models that are set up."""
    if not isinstance(loss, Tensor):
        raise InputTypeError(f"backward takes the loss, a tensor, got a {type(loss).__name__}")
    if not models or (model is not None and not any(model is known for known in models)):
        raise ConfigurationError(
            "backward of a model that is not set up",
            do="model, optimizer = runner.setup(model, optimizer), and call what it returns.",
        )
    if loss.numel() != 1:
        raise InputError(
            f"the loss must have one element, got shape {list(loss.shape)}",
            likely="under 'dp' and 'ddp2' a model that returns its loss returns one for each "
            "replica.",
            do="let the model return its outputs, and compute the loss of them in the loop: the "
            "mean of the replicas' losses is that of the batch only where it is cut into equal "
            "parts.",
        )
    if not loss.requires_grad:
        raise InputError(
            "the loss has no gradient: computed under no_grad, detached, or of a frozen model?"
        )
    if not any(known._runner.calls for known in models):
        raise ConfigurationError(
            "backward of a loss that no set-up model has computed: its gradients would not be "
            "averaged",
            likely="the loop calls the model that went into setup.",
            do="call the one that setup returned.",
        )


def check_data(loaders: Sequence[RunnerLoader]) -> None:
    """Refuse a step of training while data is read that was dealt out for evaluation."""
    for loader in loaders:
        if why := loader.not_for_training:
            likely = "it doesn't shuffle, and nothing else says what it is for."
            raise ConfigurationError(
                f"backward in a pass over data that was dealt out for evaluation, {why}",
                likely=likely if loader.is_guess else "",
                do="setup_dataloaders(loader, train=True); train=False for data that is evaluated "
                "between steps.",
            )
