"""Questions to the tables."""

from __future__ import annotations

import re
from functools import lru_cache

from distlint.api.axes import axis_effect
from distlint.api.effects import Effect
from distlint.api.tables import (
    ATTRIBUTES,
    CONVENTIONS,
    ENVIRONMENT,
    FAMILIES,
    FUNCTIONS,
    METHODS,
    TELLING,
    UNBOUND,
    UNMISTAKABLE,
)

_ALIASES = (
    ("torch.distributed.distributed_c10d.", "torch.distributed."),
    ("torch.distributed.checkpoint.state_dict_loader.", "torch.distributed.checkpoint."),
    ("torch.distributed.checkpoint.state_dict_saver.", "torch.distributed.checkpoint."),
    ("torch.distributed.nn.functional.", "torch.distributed.nn.functional."),
    ("torch.distributed.nn.", "torch.distributed.nn.functional."),
    ("pytorch_lightning.", "lightning.pytorch."),
    ("lightning_fabric.", "lightning.fabric."),
    ("accelerate.utils.operations.", "accelerate.utils."),
    ("accelerate.utils.other.", "accelerate.utils."),
)
_ZERO = re.compile(r"is_(global_|world_)?(main|master|primary|root|chief|rank_?(zero|0))(_(process|rank|proc|worker))?")
_LOCAL_ZERO = re.compile(r"is_local_(main|master|primary|root|zero|rank_zero)(_process|_rank|_proc)?")
_LOCAL_RANK = re.compile(r"(get_|my_|ddp_|node_)?local_rank|LOCAL_RANK")
_RANK = re.compile(r"(get_)?(my_|global_|world_|proc_|dist_|ddp_|distributed_)?rank(_id)?|RANK")
_WORLD = re.compile(r"(get_)?(global_|distributed_|data_parallel_|dp_)?world_size|nprocs")
_GUARD = re.compile(r"(is_|only_on_|on_)?(main|master)_(process|only)(_only)?|rank_?(zero|0)_only")
_LOCAL_GUARD = re.compile(r"on_local_main_process")
_DISTRIBUTED = re.compile(r"(is|use)_(dist|distributed|ddp)(_\w*initialized)?|distributed|\w*dist\w*_initialized")
_LOADER = re.compile(r"(\w*_)?(data_?)?loader|\w*_(dl|dataloader)")
_TOGETHER = re.compile(r"gather|reduc|sync|broadcast|across|average|agree|world|global", re.IGNORECASE)
_TOGETHER_NOW = re.compile(r"(?:^|_)(?:all)?(?:reduced|gathered|synced|synchronized)(?:_|$)", re.IGNORECASE)
_LOSS = re.compile(r"(?:^|[_/])(?:loss|losses|nll|ce|xent|entropy|nelbo)[_\d]*$", re.IGNORECASE)
_BY_NAME = (
    (_LOCAL_ZERO, Effect("local_zero")),
    (_ZERO, Effect("zero")),
    (_LOCAL_RANK, Effect("local_rank")),
    (_RANK, Effect("rank")),
    (_WORLD, Effect("world")),
    (_DISTRIBUTED, Effect("distributed")),
)
_remembered = lru_cache(maxsize=1 << 14)  # of a large project, the names that come again and again


@_remembered
def canonical(name: str) -> str:
    """Return the name by which the tables know what frameworks export from several places."""
    for prefix, public in _ALIASES:
        if name.startswith(prefix):
            return public + name[len(prefix) :]
    return name


def unbound(name: str) -> str:
    """Return the qualified name that a dotted name stands for where nothing in the file binds it, or ""."""
    head, dot, rest = name.partition(".")
    return UNBOUND[head] + dot + rest if head in UNBOUND else ""


@_remembered
def function_effect(name: str) -> Effect | None:
    """Return the effect of a function or class by its qualified name."""
    name = canonical(name)
    effect = FUNCTIONS.get(name)
    if effect is None and name.startswith("torch.distributed.fsdp."):
        return FUNCTIONS.get("torch.distributed.fsdp." + ".".join(name.split(".")[-1:]))
    if effect is None and name.startswith("accelerate."):
        return FUNCTIONS.get("accelerate.utils." + name.rpartition(".")[2])
    return effect


@_remembered
def family_of(name: str) -> str:
    """Return the family of a framework's class by its qualified name, or ""."""
    name = canonical(name)
    root, last = name.partition(".")[0], name.rpartition(".")[2]
    if root == "torchmetrics" and last[:1].isupper():
        return "metric"
    if root == "lightning" and ".callbacks." in name:
        return "callback"
    found = FAMILIES.get(f"{root}.{last}", "")
    return found or next((family for end, family in UNMISTAKABLE.items() if last.endswith(end)), "")


_TORCH_DATA = ("torch.utils.data.", "torchvision.datasets.", "torchaudio.datasets.", "torchtext.datasets.")
_BASES = {"Callback": "callback", "DataModule": "data_module", "Dataset": "dataset", "PreTrainedModel": "module"}
_OTHERS = ("flax", "jax", "keras", "tensorflow")  # have callbacks and data sets of their own


@_remembered
def base_family(name: str) -> str:
    """Return the family of what is derived from a class of this qualified name, or ""."""
    found = family_of(name)
    if found or name.startswith(_OTHERS):
        return found
    if name.startswith("torch.nn."):
        return "module"
    if name.startswith(("transformers.", "trl.")) and name.endswith("Trainer"):
        return "hf_trainer"
    if name.startswith(_TORCH_DATA) and not name.endswith("Sampler"):
        return "dataset"
    return next((family for end, family in _BASES.items() if name.endswith(end)), "")


@_remembered
def named_family(name: str) -> str:
    """Return what is believed of a receiver of this name, or ""."""
    name = name.lstrip("_")
    return CONVENTIONS.get(name) or ("loader" if _LOADER.fullmatch(name) else "")


def environment_kind(name: str) -> str:
    """Return what an environment variable tells of the rank: "rank", "local_rank", "world", or ""."""
    return ENVIRONMENT.get(name, "")


def method_effect(family: str, method: str) -> Effect | None:
    """Return the effect of a method by the family of its receiver."""
    methods = METHODS.get(family)
    effect = methods.get(method) if methods else None
    return effect or TELLING.get(method)


def attribute_effect(attribute: str) -> Effect | None:
    """Return the effect of reading an attribute, or of calling one of this name without arguments."""
    kind = ATTRIBUTES.get(attribute)
    return Effect(kind) if kind else name_effect(attribute)


@_remembered
def name_effect(name: str) -> Effect | None:
    """Return what a name says by convention, where what it stands for cannot be seen."""
    name = name.lstrip("_")
    return axis_effect(name) or next((effect for pattern, effect in _BY_NAME if pattern.fullmatch(name)), None)


def guard_decorator(name: str) -> str:
    """Return "rank==0" or "local_rank==0" of a decorator that lets one process alone run a function, or ""."""
    last = name.rpartition(".")[2]
    if _LOCAL_GUARD.fullmatch(last):
        return "local_rank==0"
    return "rank==0" if _GUARD.fullmatch(last) else ""


def is_first_fsdp(name: str) -> bool:
    """True for the qualified name of the wrapper whose states are gathered where they are asked for."""
    return name.endswith(".FullyShardedDataParallel")


def names_loss(name: str) -> bool:
    """True if an entry of this name is a loss, a mean over examples."""
    return _LOSS.search(name) is not None


def stops_gradients(name: str) -> bool:
    """True if a context or decorator of this qualified name lets nothing be differentiated."""
    return name in ("torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode")


def was_brought_together(name: str) -> bool:
    """True if a variable of this name holds what all ranks agree on."""
    return _TOGETHER_NOW.search(name) is not None


def brings_together(name: str) -> bool:
    """True if an unseen function of this name may return what all ranks agree on."""
    return _TOGETHER.search(name) is not None
