"""Check, before a run, that a module and callbacks have what the run will call."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from distmetrics.arguments import describe
from distmetrics.errors import ConfigurationError
from distmetrics.run.callbacks.base import Callback
from distmetrics.run.hooks import Hooks
from distmetrics.run.module import Module

_LAST = "dataloader_idx"
_STEPS = {
    "training_step": ("batch", "batch_idx"),
    "training_step_end": ("outputs",),
    "validation_step_end": ("outputs",),
    "test_step_end": ("outputs",),
    "training_epoch_end": ("outputs",),
    "validation_epoch_end": ("outputs",),
    "test_epoch_end": ("outputs",),
}
# Methods that other trainers call, or older ones did. Nobody would call them here.
_OTHERS = {
    "configure_callbacks": "pass callbacks=[...] to the trainer.",
    "configure_gradient_clipping": "pass gradient_clip_val=... to the trainer, or clip in "
    "on_before_optimizer_step.",
    "lr_scheduler_step": "return {'scheduler': ..., 'interval': ..., 'monitor': ...} from "
    "configure_optimizers.",
    "optimizer_step": "use on_before_optimizer_step, or set self.automatic_optimization = False.",
    "on_before_batch_transfer": "do it in the data set or in collate_fn.",
    "transfer_batch_to_device": "give what is in the batch a method to(device).",
    "on_after_batch_transfer": "do it at the beginning of the step.",
    "on_batch_start": "call it on_train_batch_start.",
    "on_batch_end": "call it on_train_batch_end.",
    "on_epoch_start": "call it on_train_epoch_start.",
    "on_epoch_end": "call it on_train_epoch_end.",
    "on_before_zero_grad": "do it in on_before_optimizer_step, or at the beginning of the next "
    "step.",
    "optimizer_zero_grad": "set self.automatic_optimization = False.",
    "backward": "change the loss in training_step, or set self.automatic_optimization = False.",
    "configure_model": "make the layers in __init__, or in setup(stage).",
    "configure_sharded_model": "make the layers in __init__, or in setup(stage), and say "
    "strategy='fsdp'.",
    "on_pretrain_routine_start": "call it on_fit_start.",
    "on_pretrain_routine_end": "call it on_train_start.",
    "on_sanity_check_start": "use on_validation_start, and ask trainer.global_step.",
    "on_sanity_check_end": "use on_train_start.",
    "on_init_start": "do it where the trainer is made.",
    "on_init_end": "do it where the trainer is made.",
    "on_keyboard_interrupt": "use on_exception.",
}


def _hooks_of(base: type) -> dict[str, tuple[str, ...]]:
    """Return the arguments of each hook of a class, but the number of the loader."""
    hooks = {}
    for name, method in vars(base).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            arguments = list(inspect.signature(method).parameters)[1:]
            hooks[name] = tuple(argument for argument in arguments if argument != _LAST)
    return hooks


_HOOKS = _hooks_of(Hooks)
_CALLBACK_HOOKS = _hooks_of(Callback)


def overrides(module: Module, name: str) -> bool:
    """True if the module's class has a method ``name`` of its own."""
    return getattr(type(module), name) is not getattr(Module, name)


def require(module: Any, *methods: str) -> None:
    """Check that it is a module, and overrides ``methods``.

    Raises:
        ConfigurationError: one is missing, or it is no such module.
    """
    if not isinstance(module, Module):
        raise ConfigurationError(
            f"the trainer takes an object of Module or a subclass, got {describe(module)}",
            do="subclass distmetrics.train.Module, with the model as an attribute, and pass "
            "YourModule(...).",
        )
    missing = [name for name in methods if not overrides(module, name)]
    if missing:
        raise ConfigurationError(f"{type(module).__name__} has no {' and no '.join(missing)}")


def check_hooks(module: Any, callbacks: Iterable[Any], datamodule: Any) -> None:
    """Check what a call of the trainer will call: steps and hooks.

    Raises:
        ConfigurationError: one of them can't be called with the arguments that it will get, or
            only other trainers would call it.
    """
    _check_all(module, _STEPS | _HOOKS)
    for callback in callbacks:
        _check_all(callback, _CALLBACK_HOOKS)
    _check_all(datamodule, {})


def _check_all(owner: Any, hooks: Mapping[str, tuple[str, ...]]) -> None:
    for name, advice in _OTHERS.items():
        if callable(getattr(owner, name, None)):
            raise ConfigurationError(
                f"{type(owner).__name__}.{name} would never be called: this trainer has no "
                "such hook",
                do=advice,
            )
    for name, arguments in hooks.items():
        if callable(getattr(owner, name, None)):
            _check(owner, name, arguments)


def check_step(module: Any, callbacks: Iterable[Any], name: str, *, loaders: int) -> None:
    """Check an evaluation's step and hooks: with several loaders they get ``dataloader_idx``."""
    last = (_LAST,) if loaders > 1 else ()
    _check(module, name, ("batch", "batch_idx", *last))
    stage = name.removesuffix("_step")
    for hook in (f"on_{stage}_batch_start", f"on_{stage}_batch_end") if last else ():
        _check(module, hook, (*_HOOKS[hook], *last))
        for callback in callbacks:
            _check(callback, hook, (*_CALLBACK_HOOKS[hook], *last))


def _check(owner: Any, name: str, arguments: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(getattr(owner, name))
    except (TypeError, ValueError):  # a compiled callable has no signature to look at
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        advice = f"def {name}({', '.join(('self', *arguments))})"
        if "optimizer_idx" in signature.parameters:
            advice = (
                "set self.automatic_optimization = False and step each optimizer of "
                "self.optimizers() yourself."
            )
        raise ConfigurationError(
            f"{type(owner).__name__}.{name} takes ({', '.join(signature.parameters)}), and is "
            f"called with ({', '.join(arguments)}): {error}",
            do=advice,
        ) from error
