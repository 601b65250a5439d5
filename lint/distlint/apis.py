"""What the linter knows of frameworks: what calls every rank must make, and what tells the rank."""

from __future__ import annotations

import re
from functools import lru_cache

_ALIASES = (
    ("torch.distributed.distributed_c10d.", "torch.distributed."),
    ("torch.distributed.nn.functional.", "torch.distributed.nn."),
    ("deepspeed.comm.", "torch.distributed."),
    ("pytorch_lightning.", "lightning.pytorch."),
    ("lightning_fabric.", "lightning.fabric."),
    ("accelerate.utils.operations.", "accelerate.utils."),
    ("accelerate.utils.other.", "accelerate.utils."),
)
# What names stand for in a snippet that does not import them.
UNBOUND = {
    "torch": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "dist": "torch.distributed",
    "np": "numpy",
    "pl": "lightning.pytorch",
    "LightningModule": "lightning.pytorch.LightningModule",
    "LightningDataModule": "lightning.pytorch.LightningDataModule",
}
# The classes of frameworks, by the first and the last part of their qualified names.
_FAMILIES = {
    name: family
    for family, names in {
        "lightning_module": "lightning.LightningModule",
        "data_module": "lightning.LightningDataModule",
        "callback": "lightning.Callback",
        "trainer": "lightning.Trainer lightning.LightningCLI",
        "fabric": "lightning.Fabric",
        "lite": "lightning.LightningLite",
        "accelerator": "accelerate.Accelerator accelerate.PartialState",
        "hf_trainer": "transformers.Trainer transformers.Seq2SeqTrainer",
        "module": "torch.Module torch.Sequential torch.ModuleList",
        "dataset": "torch.Dataset torch.IterableDataset torchvision.ImageFolder "
        "torchvision.VisionDataset",
        "loader": "torch.DataLoader",
    }.items()
    for name in names.split()
}
_ENDINGS = {
    "LightningModule": "lightning_module",
    "LightningDataModule": "data_module",
    "LightningLite": "lite",
}
_METRIC_PACKAGES = ("torchmetrics.", "torcheval.metrics.", "lightning.pytorch.metrics.")

# Collectives of modules, and where they take their process group.
_DISTRIBUTED = {
    "all_reduce": 2, "all_gather": 2, "all_gather_into_tensor": 2, "all_gather_object": 2,
    "all_gather_coalesced": 2, "all_reduce_coalesced": 2, "_all_gather_base": 2, "all_to_all": 2,
    "all_to_all_single": 4, "broadcast": 2, "broadcast_object_list": 2, "barrier": 0,
    "monitored_barrier": 0, "gather": 3, "gather_object": 3, "scatter": 3,
    "scatter_object_list": 3, "reduce": 3, "reduce_scatter": 3, "reduce_scatter_tensor": 3,
}  # fmt: skip
_PACKAGES = {
    "torch.distributed": " ".join(_DISTRIBUTED) + " new_group destroy_process_group_",
    "torch.distributed.nn": " ".join(_DISTRIBUTED),
    "distmetrics": "all_gather all_reduce barrier broadcast all_gather_cat all_true any_true "
    "gather_samples mean sync_and_compute synced",
    "horovod.torch": "allgather allreduce allreduce_ alltoall barrier broadcast broadcast_",
    "torch_xla.core.xla_model": "all_gather all_reduce all_to_all mesh_reduce rendezvous",
    "accelerate.utils": "broadcast broadcast_object_list gather gather_object "
    "pad_across_processes reduce wait_for_everyone",
    "torch.distributed.checkpoint": "save load async_save save_state_dict load_state_dict",
    "torchmetrics.utilities.distributed": "gather_all_tensors",
    "torcheval.metrics.toolkit": "sync_and_compute sync_and_compute_collection",
    "detectron2.utils.comm": "all_gather gather reduce_dict shared_random_seed synchronize",
    "mmengine.dist": "all_gather all_reduce barrier broadcast all_gather_object all_reduce_dict "
    "broadcast_object_list gather gather_object collect_results",
}
FUNCTIONS = frozenset(
    f"{package}.{name}" for package, names in _PACKAGES.items() for name in names.split()
)
# Collectives that are methods, by what the receiver is.
METHODS = {
    "accelerator": "gather gather_for_metrics reduce pad_across_processes wait_for_everyone "
    "save_state load_state",
    "fabric": "all_gather all_reduce barrier broadcast",
    "trainer": "save_checkpoint",
    "strategy": "barrier broadcast all_gather reduce reduce_boolean_decision",
    "deepspeed": "save_checkpoint load_checkpoint save_16bit_model",
    "lightning_module": "all_gather",
}
_METHODS = {family: frozenset(names.split()) for family, names in METHODS.items()}
# Methods that are collectives on whatever they are called.
_TELLING = frozenset({"gather_for_metrics", "wait_for_everyone", "save_16bit_model"})
# Collectives that return something new and leave what they are given as it is.
_NEW = frozenset(
    f"{package}.{name}"
    for package, names in {
        "accelerate.utils": "reduce gather gather_object pad_across_processes",
        "torch.distributed.nn": "all_reduce all_gather broadcast gather reduce all_to_all",
        "horovod.torch": "allreduce allgather broadcast",
        "torchmetrics.utilities.distributed": "gather_all_tensors",
        "detectron2.utils.comm": "all_gather gather reduce_dict",
        "distmetrics": "all_gather all_reduce mean gather_samples all_gather_cat",
        "accelerator": "reduce gather gather_for_metrics pad_across_processes",
        "fabric": "all_gather",
        "strategy": "reduce all_gather",
        "lightning_module": "all_gather",
    }.items()
    for name in names.split()
)
# What a receiver is by its name, where its class cannot be seen.
_CONVENTIONS = {
    "accelerator": "accelerator",
    "fabric": "fabric",
    "trainer": "trainer",
    "strategy": "strategy",
    "training_type_plugin": "strategy",
    "pl_module": "lightning_module",
    "lightning_module": "lightning_module",
    "model_engine": "deepspeed",
    "ds_engine": "deepspeed",
    "deepspeed_engine": "deepspeed",
}
# Functions and methods whose results all ranks agree on.
REDUCING = re.compile(
    r"reduc|gather|broadcast|sync|all_true|any_true|across|agree|average_over|world", re.IGNORECASE
)
_FIRST = r"(global_|world_)?(main|master|primary|root|chief|rank_?(zero|0))"
_ZERO = re.compile(
    rf"(is|am_i)_{_FIRST}(_(process|rank|proc|worker|node|ordinal))?(_zero)?"
    rf"|{_FIRST}_(process|rank|proc)|(main|master)|(global_)?rank_?(zero|0)"
    r"|is_(global_)?zero|is_first_(rank|worker|process)|is_(world_)?process_zero"
)
_LOCAL_ZERO = re.compile(
    r"is_local_(main|master|zero|process_zero|rank_?(zero|0))(_(process|rank|proc|zero))?"
)
# Such functions are the test of the rank whatever they are given; ``is_root(x)`` may be any.
_ASKING = re.compile(r"(is|am_i)_(global_|world_|local_)?(main|master|rank_?(zero|0))(_\w+)?")
_RANK = re.compile(
    r"(get_)?(my_|global_|world_|proc_|dist_|ddp_|distributed_|local_|node_|process_)?"
    r"(rank|RANK)(_id)?|LOCAL_RANK|(local_)?process_index|get_ordinal|proc_id"
)
_GUARDS = re.compile(
    r"rank_?(zero|0)_only|(is_|only_on_|on_)?(local_)?(main|master)_(process|only|rank)(_only)?"
    r"|master_only|main_process_only"
)
_WORLD = re.compile(
    r"(get_)?(global_|distributed_|data_parallel_|dp_)?world_size|num_processes|nprocs"
    r"|n_?gpus|num_gpus|(is_)?distributed|use_ddp|ddp|is_initialized|is_available|is_dist\w*"
)
ENVIRONMENT = frozenset({"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID"})
# Steps and hooks of Lightning that see one part of the data on each rank.
EVALUATION = re.compile(r"(on_)?(validation|test)_(step|epoch_end|batch_end|step_end|epoch_start)")
STEPS = frozenset({"training_step", "validation_step", "test_step", "predict_step"})
LOSSES = re.compile(r"(?:^|[_/.])(?:loss|losses|nll|xent|nelbo|loss\w{0,2})[_\d]*$", re.IGNORECASE)


def end_of(name: str) -> str:
    """Return the last part of a qualified name."""
    return name.rpartition(".")[2]


def _plain(name: str) -> str:
    return end_of(name).lstrip("_")


@lru_cache(maxsize=1 << 14)
def canonical(name: str) -> str:
    """Return the name by which the tables know what frameworks export from several places."""
    for prefix, public in _ALIASES:
        if name.startswith(prefix):
            return public + name[len(prefix) :]
    return name


@lru_cache(maxsize=1 << 14)
def family_of(name: str) -> str:
    """Return what a framework's class is, by its qualified name, or ``""``."""
    root, end = name.partition(".")[0], end_of(name)
    if name.startswith(_METRIC_PACKAGES):
        return "metric" if end[:1].isupper() else ""
    if root == "lightning" and ".callbacks." in name:
        return "callback"
    if name.startswith("torch.nn.modules.") or (
        name.startswith("torch.nn.") and name.count(".") == 2 and end[:1].isupper()
    ):
        return "module"
    if root == "transformers" and end.endswith("Trainer"):
        return "hf_trainer"
    if root == "transformers" and end.endswith("PreTrainedModel"):
        return "module"
    found = _FAMILIES.get(f"{root}.{end}", "")
    return found or next((kind for tail, kind in _ENDINGS.items() if end.endswith(tail)), "")


def receiver_family(name: str) -> str:
    """Return what is believed of a receiver of this name, such as ``"self.trainer"``, or ``""``."""
    return _CONVENTIONS.get(_plain(name), "")


def is_collective_function(name: str) -> bool:
    """Return whether every rank must call the function of a qualified name."""
    if name.startswith("accelerate."):
        name = "accelerate.utils." + end_of(name)
    return name in FUNCTIONS


def is_collective_method(family: str, method: str) -> bool:
    """Return whether every rank must call a method of what a receiver is."""
    return method in _METHODS.get(family, ()) or method in _TELLING


def returns_new(name: str, family: str) -> bool:
    """Return whether a collective, function or method, leaves its argument as it is."""
    return name in _NEW or f"{family}.{end_of(name)}" in _NEW


def group_argument(name: str) -> int | None:
    """Return at which position a function takes its process group; None where it takes none."""
    package, _, function = name.rpartition(".")
    return _DISTRIBUTED.get(function) if package == "torch.distributed" else None


def is_first_rank(name: str) -> bool:
    """Return whether a name is true on one rank alone, such as ``is_main_process``."""
    end = _plain(name)
    return bool(_ZERO.fullmatch(end) or _LOCAL_ZERO.fullmatch(end))


def asks_for_first_rank(name: str) -> bool:
    """Return whether a function of this name tests the rank, also where it is given something."""
    return _ASKING.fullmatch(_plain(name)) is not None


def is_rank(name: str) -> bool:
    """Return whether a name holds the number of the rank, such as ``args.local_rank``."""
    return _RANK.fullmatch(_plain(name)) is not None


def is_world(name: str) -> bool:
    """Return whether a name tells how many ranks there are, or whether there are several."""
    return _WORLD.fullmatch(_plain(name)) is not None


def is_rank_guard(name: str) -> bool:
    """Return whether a decorator of this name lets one rank alone run a function."""
    return _GUARDS.fullmatch(end_of(name)) is not None


def names_loss(name: str) -> bool:
    """Return whether a value of this name is a loss, a mean over examples."""
    return LOSSES.search(name) is not None
