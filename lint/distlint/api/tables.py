"""Qualified name to effect; family of class and method to effect."""

from __future__ import annotations

from distlint.api.effects import Effect, collective

_DIST = {
    "all_reduce": collective("all_reduce", changes=(0,), group=2),
    "all_gather": collective("all_gather", changes=(0,), group=2),
    "all_gather_coalesced": collective("all_gather_coalesced", changes=(0,), group=2),
    "all_gather_into_tensor": collective("all_gather_into_tensor", changes=(0,), group=2),
    "all_gather_object": collective("all_gather_object", changes=(0,), group=2),
    "all_reduce_coalesced": collective("all_reduce_coalesced", changes=(0,), group=2),
    "all_to_all": collective("all_to_all", "local", group=2),
    "all_to_all_single": collective("all_to_all_single", "local", group=4),
    "barrier": collective("barrier", group=0),
    "monitored_barrier": collective("monitored_barrier", group=0),
    "broadcast": collective("broadcast", changes=(0,), group=2),
    "broadcast_object_list": collective("broadcast_object_list", changes=(0,), group=2),
    "gather": collective("gather", "local", group=3),
    "gather_object": collective("gather_object", "local", group=3),
    "reduce": Effect("collective", "reduce", (0,), "local", group=3),
    "reduce_scatter": collective("reduce_scatter", "local", group=3),
    "reduce_scatter_tensor": collective("reduce_scatter_tensor", "local", group=3),
    "scatter": collective("scatter", "local", group=3),
    "scatter_object_list": collective("scatter_object_list", "local", group=3),
    "new_group": collective("new_group"),
    "new_subgroups": collective("new_subgroups"),
    "new_subgroups_by_enumeration": collective("new_subgroups_by_enumeration"),
    "split_group": collective("split_group"),
    "_all_gather_base": collective("all_gather_into_tensor", changes=(0,), group=2),
    "_reduce_scatter_base": collective("reduce_scatter_tensor", "local", group=3),
    "device_mesh.init_device_mesh": collective("init_device_mesh"),
    "tensor.distribute_tensor": collective("distribute_tensor", "local"),
    "init_process_group": Effect("setup"),
    "get_rank": Effect("rank", group=0),
    "get_node_local_rank": Effect("local_rank"),
    "get_world_size": Effect("world", group=0),
    "is_initialized": Effect("distributed", "is_initialized"),
    "is_available": Effect("distributed"),
    "is_torchelastic_launched": Effect("distributed"),
}
_CHECKPOINT = ("save", "load", "async_save", "save_state_dict", "load_state_dict")
_STATE = tuple(f"{verb}_{what}" for verb in ("get", "set") for what in ("state_dict", "model_state_dict"))
_STATE += ("get_optimizer_state_dict", "set_optimizer_state_dict")
_FSDP = (
    "full_optim_state_dict",
    "optim_state_dict",
    "scatter_full_optim_state_dict",
    "sharded_optim_state_dict",
    "summon_full_params",
)
_DDP = Effect("wrap", "DistributedDataParallel", wrapped="ddp")
_FSDP_WRAP = Effect("wrap", "FullyShardedDataParallel", wrapped="fsdp")

_BASIC = ("all_gather", "all_reduce", "barrier", "broadcast")
_MMENGINE = (
    *_BASIC,
    "all_gather_object",
    "all_reduce_dict",
    "all_reduce_params",
    "broadcast_object_list",
    "gather",
    "collect_results",
    "collect_results_cpu",
    "collect_results_gpu",
    "gather_object",
    "sync_random_seed",
)
_HOROVOD = (
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "join",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
)
_DISTMETRICS = (
    *_BASIC,
    "all_gather_cat",
    "all_true",
    "any_true",
    "gather_samples",
    "mean",
    "sync_and_compute",
    "synced",
)
_CLASSY_VISION = (
    *(f"all_reduce_{name}" for name in ("max", "mean", "min", "sum")),
    "barrier",
    "broadcast_object",
    "gather_from_all",
    "gather_tensors_from_all",
)
_OTHERS = {
    "distmetrics": _DISTMETRICS,
    "horovod.torch": _HOROVOD,
    "torch_xla.core.xla_model": ("all_gather", "all_reduce", "all_to_all", "mesh_reduce", "rendezvous", "save"),
    "detectron2.utils.comm": ("all_gather", "gather", "reduce_dict", "shared_random_seed", "synchronize"),
    "mmengine.dist": _MMENGINE,
    "ignite.distributed": (*_BASIC, "all_gather_tensors_with_shapes", "new_group"),
    "classy_vision.generic.distributed_util": _CLASSY_VISION,
    "transformers.trainer_pt_utils": ("distributed_broadcast_scalars", "distributed_concat"),
    "deepspeed.utils": ("safe_get_full_fp32_param", "safe_get_full_grad", "safe_get_full_optimizer_state"),
}
_COMPOSER = ("all_gather", "all_gather_object", "barrier")
_COMPOSER_IN_PLACE = ("all_reduce", "broadcast", "broadcast_object_list")
_ACCELERATE = ("broadcast", "broadcast_object_list", "gather", "gather_object", "pad_across_processes", "reduce")


def _differentiable(effect: Effect) -> Effect:
    """A function that returns what the plain one writes into its argument."""
    return effect._replace(changes=(), group=-1 if effect.group == -1 else 1, grads=True)


_LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
_SHOW = Effect("show", "log")

FUNCTIONS: dict[str, Effect] = {
    **{f"logging.{name}": _SHOW for name in _LEVELS},
    **{f"mlflow.{name}": _SHOW for name in ("log_metric", "log_metrics")},
    "wandb.log": _SHOW,
    **{f"torch.distributed.{name}": effect for name, effect in _DIST.items()},
    **{f"deepspeed.comm.{name}": effect for name, effect in _DIST.items()},
    **{f"torch.distributed.nn.{name}": _differentiable(effect) for name, effect in _DIST.items()},
    **{f"torch.distributed.nn.functional.{name}": _differentiable(effect) for name, effect in _DIST.items()},
    **{f"torch.distributed.checkpoint.{name}": collective(name) for name in _CHECKPOINT},
    **{f"torch.distributed.checkpoint.state_dict.{name}": collective(name) for name in _STATE},
    **{f"torch.distributed.fsdp.FullyShardedDataParallel.{name}": collective(name) for name in _FSDP},
    **{f"accelerate.utils.{name}": collective(name) for name in _ACCELERATE},
    **{f"composer.utils.dist.{name}": collective(name) for name in _COMPOSER},
    **{f"composer.utils.dist.{name}": collective(name, changes=(0,)) for name in _COMPOSER_IN_PLACE},
    "accelerate.utils.wait_for_everyone": collective("wait_for_everyone"),
    "torchmetrics.utilities.distributed.gather_all_tensors": collective("gather_all_tensors"),
    "torcheval.metrics.toolkit.sync_and_compute": collective("sync_and_compute"),
    "torch.nn.parallel.DistributedDataParallel": _DDP,
    "torch.nn.parallel.distributed.DistributedDataParallel": _DDP,
    "torch.distributed.fsdp.FullyShardedDataParallel": _FSDP_WRAP,
    "torch.distributed.fsdp.fully_shard": _FSDP_WRAP._replace(changes=(0,)),
    "torch.distributed._composable.fsdp.fully_shard": _FSDP_WRAP._replace(changes=(0,)),
    "torch.nn.DataParallel": Effect("replicate", "DataParallel"),
    "torch.nn.parallel.DataParallel": Effect("replicate", "DataParallel"),
    "torch.utils.data.DataLoader": Effect("loader"),
    "torch.utils.data.distributed.DistributedSampler": Effect("sampler"),
    "torch.utils.data.DistributedSampler": Effect("sampler"),
    "torch.utils.data.BatchSampler": Effect("batch_sampler"),
    "torch.utils.data.sampler.BatchSampler": Effect("batch_sampler"),
    "torch.cuda.device_count": Effect("local_world"),
    "torch.cuda.set_device": Effect("set_device", "set_device"),
    "torch.load": Effect("call", returns="unknown"),
    "horovod.torch.rank": Effect("rank"),
    "horovod.torch.local_rank": Effect("local_rank"),
    "horovod.torch.size": Effect("world"),
    "torch_xla.core.xla_model.get_ordinal": Effect("rank"),
    "torch_xla.core.xla_model.get_local_ordinal": Effect("local_rank"),
    "torch_xla.core.xla_model.is_master_ordinal": Effect("zero"),
    "torch_xla.core.xla_model.xrt_world_size": Effect("world"),
    **{f"{package}.{name}": collective(name) for package, names in _OTHERS.items() for name in names},
    "deepspeed.zero.GatheredParameters": collective("GatheredParameters"),
    "torcheval.metrics.toolkit.sync_and_compute_collection": collective("sync_and_compute_collection"),
    "torch.distributed.destroy_process_group": Effect("teardown", "destroy_process_group"),
    "sys.exit": Effect("exit", "exit"),
    "os.abort": Effect("exit", "exit"),
    "os._exit": Effect("exit", "exit"),
    "os.listdir": Effect("list_files"),
    "os.scandir": Effect("list_files", "os.scandir"),
    "collections.defaultdict": Effect("dict"),
    "collections.OrderedDict": Effect("dict"),
    "collections.Counter": Effect("dict"),
    "glob.glob": Effect("list_files"),
    "glob.iglob": Effect("list_files"),
    "os.path.exists": Effect("local_file"),
    "os.path.isfile": Effect("local_file"),
    "os.path.isdir": Effect("local_file"),
    "time.time": Effect("clock"),
    "time.monotonic": Effect("clock"),
    "time.perf_counter": Effect("clock"),
    "rich.progress.track": Effect("same"),
    "accelerate.utils.tqdm": Effect("same"),
    "numpy.array_split": Effect("split"),
    "torch.tensor_split": Effect("split"),
    "torch.unique": Effect("select"),
    "torch.nonzero": Effect("select"),
    "torch.masked_select": Effect("select"),
    "numpy.unique": Effect("select"),
}
ENVIRONMENT = {
    "RANK": "rank",
    "SLURM_PROCID": "rank",
    "LOCAL_RANK": "local_rank",
    "SLURM_LOCALID": "local_rank",
    "WORLD_SIZE": "world",
    "LOCAL_WORLD_SIZE": "local_world",
}
_SHARDED_SAVE = Effect("collective", "save_checkpoint", sharded=True)
_LOOPS = ("fit", "predict", "test", "validate")
_COMM = ("all_gather", "all_reduce", "barrier", "broadcast", "reduce")
_LOG = Effect("log", "log")
_BACKWARD = Effect("backward", "backward", wrapped="prepared")

METHODS: dict[str, dict[str, Effect]] = {
    "accelerator": {
        "gather": collective("gather", "gathered"),
        "gather_for_metrics": collective("gather_for_metrics", "gathered"),
        "pad_across_processes": collective("pad_across_processes", "local"),
        "reduce": collective("reduce"),
        "check_trigger": collective("check_trigger"),
        "wait_for_everyone": collective("wait_for_everyone"),
        "load_state": collective("load_state"),
        "save_state": Effect("collective", "save_state", sharded=True),
        "save_model": Effect("collective", "save_model", sharded=True),
        "get_state_dict": Effect("collective", "get_state_dict", sharded=True),
        "main_process_first": collective("main_process_first"),
        "local_main_process_first": collective("local_main_process_first"),
        "split_between_processes": Effect("share"),
        "backward": _BACKWARD,
        "log": _SHOW,
        "print": _SHOW,
        "prepare": Effect("wrap", wrapped="prepared"),
        "prepare_model": Effect("wrap", wrapped="prepared"),
        "prepare_data_loader": Effect("loader"),
    },
    "fabric": {
        **{name: collective(name) for name in _COMM},
        "all_gather": collective("all_gather", "gathered"),
        "all_reduce": collective("all_reduce", changes=(0,)),
        "load": collective("load"),
        "save": collective("save"),
        "rank_zero_first": collective("rank_zero_first"),
        "setup": Effect("wrap", wrapped="prepared"),
        "setup_module": Effect("wrap", "setup_module", wrapped="prepared"),
        "setup_dataloaders": Effect("loader"),
        "backward": _BACKWARD,
        "log": _SHOW,
        "log_dict": _SHOW,
        "print": _SHOW,
    },
    "trainer": {"save_checkpoint": collective("save_checkpoint", "")},
    "lightning_trainer": {
        "save_checkpoint": collective("save_checkpoint", ""),
        **{name: collective(name, "") for name in _LOOPS},
    },
    "hf_trainer": {
        **{name: collective(name, "") for name in ("evaluate", "predict", "train")},
        "save_model": Effect("collective", "save_model", sharded=True),
    },
    "strategy": {
        **{name: collective(name) for name in _COMM},
        "reduce_boolean_decision": collective("reduce_boolean_decision"),
        "save_checkpoint": _SHARDED_SAVE,
    },
    "lightning_module": {
        "all_gather": collective("all_gather", "gathered"),
        "manual_backward": _BACKWARD,
        "log": _LOG,
        "log_dict": Effect("log", "log_dict"),
    },
    "distmetrics_module": {"log": _LOG, "log_dict": Effect("log", "log_dict")},
    "callback": {"log": _LOG, "log_dict": Effect("log", "log_dict")},  # lent by the module while a trainer runs
    "deepspeed": {
        "save_checkpoint": collective("save_checkpoint", ""),
        "load_checkpoint": collective("load_checkpoint", ""),
        "save_16bit_model": collective("save_16bit_model", ""),
        "save_fp16_model": collective("save_fp16_model", ""),
        "backward": _BACKWARD,
    },
    "logger": dict.fromkeys((*_LEVELS, "log_metrics", "log_dict", "add_scalar", "add_scalars"), _SHOW),
    "metric": {"compute": collective("compute"), "update": Effect("update", "update")},
    "ddp": {"no_sync": Effect("no_sync")},
    "fsdp": {
        "clip_grad_norm_": collective("clip_grad_norm_"),
        "state_dict": collective("state_dict", ""),
    },
}
# Methods whose name alone says what they are, whatever they are called on.
TELLING = {
    **{
        name: collective(name, "gathered")
        for name in ("consolidate_state_dict", "full_tensor", "gather_for_metrics", "wait_for_everyone")
    },
    **dict.fromkeys(
        ("add_scalar", "add_scalars", "log_metrics", "set_description", "set_postfix", "set_postfix_str"), _SHOW
    ),
    "save_16bit_model": collective("save_16bit_model", ""),
    "split_between_processes": Effect("share"),
    **dict.fromkeys(("exists", "is_dir", "is_file"), Effect("local_file")),
}
ATTRIBUTES: dict[str, str] = {
    "is_global_zero": "zero",
    "is_main_process": "zero",
    "is_world_process_zero": "zero",
    "is_local_main_process": "local_zero",
    "is_local_process_zero": "local_zero",
    "is_last_process": "last",
    "global_rank": "rank",
    "process_index": "rank",
    "local_process_index": "local_rank",
    "num_processes": "world",
    "world_size": "world",
}
# First and last part of a class's qualified name: everything between is where the framework keeps it.
FAMILIES: dict[tuple[str, str], str] = {
    ("lightning", "LightningModule"): "lightning_module",
    ("lightning", "LightningDataModule"): "data_module",
    ("lightning", "Callback"): "callback",
    ("lightning", "Trainer"): "lightning_trainer",
    ("lightning", "Fabric"): "fabric",
    ("lightning", "LightningLite"): "fabric",
    ("lightning", "Strategy"): "strategy",
    ("accelerate", "Accelerator"): "accelerator",
    ("accelerate", "PartialState"): "accelerator",
    ("deepspeed", "initialize"): "deepspeed",
    ("deepspeed", "DeepSpeedEngine"): "deepspeed",
    ("transformers", "Trainer"): "hf_trainer",
    ("transformers", "Seq2SeqTrainer"): "hf_trainer",
    ("distmetrics", "Module"): "distmetrics_module",
    ("torch", "Module"): "module",
    ("torch", "Dataset"): "dataset",
    ("torch", "IterableDataset"): "dataset",
    ("torch", "DataLoader"): "loader",
    ("torch", "SummaryWriter"): "logger",
    ("logging", "Logger"): "logger",
    ("logging", "getLogger"): "logger",
    ("torchmetrics", "MetricCollection"): "metric",
    ("torchmetrics", "Metric"): "metric",
}
# What a class is by the end of its name, wherever it comes from.
UNMISTAKABLE = {"LightningModule": "lightning_module", "LightningDataModule": "data_module", "LightningLite": "fabric"}
# What names stand for in a snippet that doesn't import them.
UNBOUND = {
    "torch": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "dist": "torch.distributed",
    "np": "numpy",
    "pl": "lightning.pytorch",
    "L": "lightning",
    "LightningModule": "lightning.pytorch.LightningModule",
    "LightningDataModule": "lightning.pytorch.LightningDataModule",
    "Callback": "lightning.pytorch.Callback",
    "Trainer": "lightning.pytorch.Trainer",
    "Accelerator": "accelerate.Accelerator",
    "torchmetrics": "torchmetrics",
    "distmetrics": "distmetrics",
}
# What is believed of a receiver whose class cannot be seen.
CONVENTIONS = {
    "accelerator": "accelerator",
    "fabric": "fabric",
    "logger": "logger",
    "trainer": "trainer",
    "strategy": "strategy",
    "training_type_plugin": "strategy",
    "pl_module": "lightning_module",
    "lightning_module": "lightning_module",
    "model_engine": "deepspeed",
    "ds_engine": "deepspeed",
    "deepspeed_engine": "deepspeed",
}
