"""The collective calls of torch and of the frameworks around it, by full name and by kind of receiver."""

from __future__ import annotations

import re

_TORCH = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)
_CHECKPOINT = ("save", "load", "async_save", "save_state_dict", "load_state_dict")
_CHECKPOINT_STATE = (
    "get_model_state_dict",
    "get_optimizer_state_dict",
    "get_state_dict",
    "set_model_state_dict",
    "set_optimizer_state_dict",
    "set_state_dict",
)
_FSDP = (
    "full_optim_state_dict",
    "optim_state_dict",
    "scatter_full_optim_state_dict",
    "sharded_optim_state_dict",
    "summon_full_params",
)
_DETECTRON = ("all_gather", "gather", "reduce_dict", "shared_random_seed", "synchronize")
_MMENGINE = (
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_reduce_dict",
    "all_reduce_params",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "collect_results",
    "collect_results_cpu",
    "collect_results_gpu",
    "gather",
    "gather_object",
    "sync_random_seed",
)
_IGNITE = ("all_gather", "all_reduce", "barrier", "broadcast")
_DISTMETRICS = (
    "all_gather",
    "all_gather_cat",
    "all_reduce",
    "all_true",
    "any_true",
    "barrier",
    "broadcast",
    "mean",
    "sync_and_compute",
    "synced",
)
_HOROVOD = ("allgather", "allreduce", "allreduce_", "alltoall", "barrier", "broadcast", "broadcast_", "join")
_HOROVOD_STATE = ("broadcast_parameters", "broadcast_optimizer_state", "broadcast_object", "allgather_object")
_XLA = ("all_gather", "all_reduce", "all_to_all", "mesh_reduce", "rendezvous", "save")

# Full dotted names.
FUNCTIONS = frozenset(
    {f"torch.distributed.{name}" for name in _TORCH}
    | {f"torch.distributed.distributed_c10d.{name}" for name in _TORCH}
    | {f"torch.distributed.nn.functional.{name}" for name in _TORCH}
    | {f"torch.distributed.nn.{name}" for name in _TORCH}
    | {f"torch.distributed.checkpoint.{name}" for name in _CHECKPOINT}
    | {f"torch.distributed.checkpoint.state_dict.{name}" for name in _CHECKPOINT_STATE}
    | {f"torch.distributed.fsdp.FullyShardedDataParallel.{name}" for name in _FSDP}
    | {f"deepspeed.comm.{name}" for name in _TORCH}
    | {f"horovod.torch.{name}" for name in _HOROVOD + _HOROVOD_STATE}
    | {f"torch_xla.core.xla_model.{name}" for name in _XLA}
    | {f"distmetrics.{name}" for name in _DISTMETRICS}
    | {f"accelerate.utils.{name}" for name in ("gather", "gather_object", "broadcast", "reduce", "wait_for_everyone")}
    | {f"detectron2.utils.comm.{name}" for name in _DETECTRON}
    | {f"mmengine.dist.{name}" for name in _MMENGINE}
    | {f"ignite.distributed.{name}" for name in _IGNITE}
    | {"deepspeed.zero.GatheredParameters", "torchmetrics.utilities.distributed.gather_all_tensors"}
    | {"torcheval.metrics.toolkit.sync_and_compute", "torcheval.metrics.toolkit.sync_and_compute_collection"}
)

# Methods by what they are called on.
METHODS = {
    "accelerator": frozenset(
        {
            "check_trigger",
            "gather",
            "gather_for_metrics",
            "get_state_dict",
            "load_state",
            "main_process_first",
            "pad_across_processes",
            "reduce",
            "save_model",
            "save_state",
            "wait_for_everyone",
        }
    ),
    "fabric": frozenset(
        {
            "all_gather",
            "all_reduce",
            "barrier",
            "broadcast",
            "load",
            "save",
            "setup_module",
        }
    ),
    "trainer": frozenset({"save_checkpoint"}),
    "lightning_trainer": frozenset({"fit", "predict", "save_checkpoint", "test", "validate"}),
    "hf_trainer": frozenset({"evaluate", "predict", "save_model", "train"}),
    "strategy": frozenset(
        {
            "all_gather",
            "all_reduce",
            "barrier",
            "broadcast",
            "reduce",
            "reduce_boolean_decision",
            "save_checkpoint",
        }
    ),
    "lightning": frozenset({"all_gather"}),
    "deepspeed": frozenset({"load_checkpoint", "save_checkpoint", "save_16bit_model"}),
    "metric": frozenset({"compute"}),
}
# Reduces the gradients of a wrapped model, over the ranks that the model was wrapped for.
BACKWARD = {"accelerator": "backward", "fabric": "backward", "lightning": "manual_backward"}
DDP_CLASSES = frozenset(
    {"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"}
)
HF_ROOTS = ("transformers.", "trl.")
# Methods whose name alone says that they are collective, whatever they are called on.
TELLING_METHODS = frozenset(
    {"consolidate_state_dict", "full_tensor", "gather_for_metrics", "save_16bit_model", "wait_for_everyone"}
)

# What is believed of a receiver whose class cannot be seen.
RECEIVERS = {
    "accelerator": "accelerator",
    "fabric": "fabric",
    "trainer": "trainer",
    "strategy": "strategy",
    "training_type_plugin": "strategy",
    "pl_module": "lightning",
    "lightning_module": "lightning",
    "model_engine": "deepspeed",
    "ds_engine": "deepspeed",
    "deepspeed_engine": "deepspeed",
}
CONSTRUCTORS = {
    "accelerate.Accelerator": "accelerator",
    "accelerate.PartialState": "accelerator",
    "lightning.Fabric": "fabric",
    "lightning.fabric.Fabric": "fabric",
    "lightning_fabric.Fabric": "fabric",
    "lightning.Trainer": "lightning_trainer",
    "lightning.pytorch.Trainer": "lightning_trainer",
    "pytorch_lightning.Trainer": "lightning_trainer",
    "deepspeed.initialize": "deepspeed",
}
# Every last name that can be collective: a quick answer for most calls.
LAST_NAMES = frozenset(
    {name.rpartition(".")[2] for name in FUNCTIONS}.union(*METHODS.values()) | TELLING_METHODS | {"state_dict"}
)
# One of these is in every file with a collective: the module that a function comes from, or what tells of a receiver.
TOKENS: tuple[bytes, ...] = (
    b"distributed",
    b"dist.",
    b"distmetrics",
    b"deepspeed",
    b"horovod",
    b"torch_xla",
    b"torchmetrics",
    b"torcheval",
    b"ccelerat",
    b"abric",
    b"LightningLite",
    b"strategy",
    b"training_type_plugin",
    b"DistributedDataParallel",
    b"Trainer",
    b"all_gather",
    b"detectron2",
    b"manual_backward",
    b"mmengine",
    b"state_dict_type",
    *sorted(name.encode() for kind in ("deepspeed", "trainer") for name in METHODS[kind]),
    *sorted(name.encode() for name in TELLING_METHODS),
)
_CALLED = re.compile(rb"\b(?:" + "|".join(sorted(LAST_NAMES.union(BACKWARD.values()))).encode() + rb")\b")
_LICENCE = re.compile(rb"distributed(?= under the | on an )")


def may_have_collective(source: bytes) -> bool:
    """Whether one of the tokens and the name of a call are in a file; how a licence distributes it does not count."""
    has_token = any(token in source for token in TOKENS if token != b"distributed")
    if not has_token and source.count(b"distributed") <= len(_LICENCE.findall(source)):
        return False
    return _CALLED.search(source) is not None
