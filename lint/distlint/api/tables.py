"""Qualified name to effect; family of class and method to effect."""

from __future__ import annotations

from distlint.api.effects import Effect, collective


def _collectives(
    names: str, returns: str = "same", changes: tuple[int, ...] = (), group: int = -1
) -> dict[str, Effect]:
    """What every rank has to call, each matched by its own name."""
    return {name: collective(name, returns, changes, group) for name in names.split()}


def _each(names: str, effect: Effect) -> dict[str, Effect]:
    return dict.fromkeys(names.split(), effect)


def _below(package: str, functions: dict[str, Effect]) -> dict[str, Effect]:
    return {f"{package}.{name}": effect for name, effect in functions.items()}


_IN_PLACE = """
    all_reduce all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce_coalesced broadcast
    broadcast_object_list
"""
_DIST = {
    **_collectives(_IN_PLACE, changes=(0,), group=2),
    **_collectives("all_to_all", "local", group=2),
    **_collectives("all_to_all_single", "local", group=4),
    **_collectives("barrier monitored_barrier", group=0),
    **_collectives("gather gather_object scatter scatter_object_list", "local", group=3),
    **_collectives("reduce_scatter reduce_scatter_tensor", "local", group=3),
    **_collectives("reduce", "local", (0,), group=3),
    **_collectives("new_group new_subgroups new_subgroups_by_enumeration split_group"),
    "_all_gather_base": collective("all_gather_into_tensor", changes=(0,), group=2),
    "_reduce_scatter_base": collective("reduce_scatter_tensor", "local", group=3),
    "device_mesh.init_device_mesh": collective("init_device_mesh"),
    "tensor.distribute_tensor": collective("distribute_tensor", "local"),
    "init_process_group": Effect("setup"),
    "get_rank": Effect("rank", group=0),
    "get_group_rank": Effect("rank", "get_group_rank", group=0),
    "get_global_rank": Effect("call", returns="unknown"),  # of any rank of a group
    "get_node_local_rank": Effect("local_rank"),
    "get_world_size": Effect("world", group=0),
    "is_initialized": Effect("distributed", "is_initialized"),
    **_each("is_available is_torchelastic_launched", Effect("distributed")),
}
# What returns its result, where the plain function of the name writes it into its argument.
_DIFFERENTIABLE = {
    name: effect._replace(changes=(), group=-1 if effect.group == -1 else 1, grads=True)
    for name, effect in _DIST.items()
}
_STATES = """
    get_state_dict get_model_state_dict get_optimizer_state_dict set_state_dict set_model_state_dict
    set_optimizer_state_dict
"""
_FSDP_STATES = """
    full_optim_state_dict optim_state_dict scatter_full_optim_state_dict sharded_optim_state_dict summon_full_params
"""
_DDP = Effect("wrap", "DistributedDataParallel", wrapped="ddp")
_FSDP = Effect("wrap", "FullyShardedDataParallel", wrapped="fsdp")
_BASIC = "all_gather all_reduce barrier broadcast "
_PACKAGES = {
    "distmetrics": _BASIC + "all_gather_cat all_true any_true gather_samples mean sync_and_compute synced",
    "horovod.torch": """
        allgather allreduce allreduce_ alltoall barrier broadcast broadcast_ join allgather_object broadcast_object
        broadcast_optimizer_state broadcast_parameters
    """,
    "torch_xla.core.xla_model": "all_gather all_reduce all_to_all mesh_reduce rendezvous save",
    "detectron2.utils.comm": "all_gather gather reduce_dict shared_random_seed synchronize",
    "mmengine.dist": _BASIC
    + """
        all_gather_object all_reduce_dict all_reduce_params broadcast_object_list gather collect_results
        collect_results_cpu collect_results_gpu gather_object sync_random_seed
    """,
    "ignite.distributed": _BASIC + "all_gather_tensors_with_shapes new_group",
    "classy_vision.generic.distributed_util": """
        all_reduce_max all_reduce_mean all_reduce_min all_reduce_sum barrier broadcast_object gather_from_all
        gather_tensors_from_all
    """,
    "composer.utils.dist": "all_gather all_gather_object barrier",
    "transformers.trainer_pt_utils": "distributed_broadcast_scalars distributed_concat",
    "deepspeed.utils": "safe_get_full_fp32_param safe_get_full_grad safe_get_full_optimizer_state",
    "accelerate.utils": """
        broadcast broadcast_object_list gather gather_object pad_across_processes reduce wait_for_everyone
    """,
    "deepspeed.zero": "GatheredParameters",
    "torch.distributed.checkpoint": "save load async_save save_state_dict load_state_dict",
    "torch.distributed.checkpoint.state_dict": _STATES,
    "torch.distributed.fsdp.FullyShardedDataParallel": _FSDP_STATES,
    "torcheval.metrics.toolkit": "sync_and_compute sync_and_compute_collection",
    "torchmetrics.utilities.distributed": "gather_all_tensors",
}
_LEVELS = "debug info warning error critical exception log "
_SHOW = Effect("show", "log")

FUNCTIONS: dict[str, Effect] = {
    **{
        f"{package}.{name}": effect
        for package, names in _PACKAGES.items()
        for name, effect in _collectives(names).items()
    },
    **_below("composer.utils.dist", _collectives("all_reduce broadcast broadcast_object_list", changes=(0,))),
    **_below("logging", _each(_LEVELS, _SHOW)),
    **_each("mlflow.log_metric mlflow.log_metrics wandb.log", _SHOW),
    **_below("torch.distributed", _DIST),
    **_below("deepspeed.comm", _DIST),
    **_below("torch.distributed.nn", _DIFFERENTIABLE),
    **_below("torch.distributed.nn.functional", _DIFFERENTIABLE),
    "torch.nn.parallel.DistributedDataParallel": _DDP,
    "torch.nn.parallel.distributed.DistributedDataParallel": _DDP,
    "torch.distributed.fsdp.FullyShardedDataParallel": _FSDP,
    "torch.distributed.fsdp.fully_shard": _FSDP._replace(changes=(0,)),
    "torch.distributed._composable.fsdp.fully_shard": _FSDP._replace(changes=(0,)),
    **_each("torch.nn.DataParallel torch.nn.parallel.DataParallel", Effect("replicate", "DataParallel")),
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
    "torch.distributed.destroy_process_group": Effect("teardown", "destroy_process_group"),
    **_each("sys.exit os.abort os._exit", Effect("exit", "exit")),
    **_each("os.listdir glob.glob glob.iglob", Effect("list_files")),
    "os.scandir": Effect("list_files", "os.scandir"),
    **_each("collections.defaultdict collections.OrderedDict collections.Counter", Effect("dict")),
    **_each("os.path.exists os.path.isfile os.path.isdir", Effect("local_file")),
    **_each("time.time time.monotonic time.perf_counter", Effect("clock")),
    **_each("rich.progress.track accelerate.utils.tqdm", Effect("same")),
    **_each("numpy.array_split torch.tensor_split", Effect("split")),
    **_each("torch.unique torch.nonzero torch.masked_select numpy.unique", Effect("select")),
}
ENVIRONMENT = {
    "RANK": "rank",
    "SLURM_PROCID": "rank",
    "LOCAL_RANK": "local_rank",
    "SLURM_LOCALID": "local_rank",
    "WORLD_SIZE": "world",
    "LOCAL_WORLD_SIZE": "local_world",
}
_COMM = "all_gather all_reduce barrier broadcast reduce"
_LOGS = {"log": Effect("log", "log"), "log_dict": Effect("log", "log_dict")}
_PREPARE = Effect("wrap", wrapped="prepared")
_BACKWARD = {"backward": Effect("backward", "backward", wrapped="prepared")}
_SCALARS = "add_scalar add_scalars log_metrics "


def _sharded(names: str) -> dict[str, Effect]:
    """What waits for all ranks where states are sharded, and only there."""
    return {name: Effect("collective", name, sharded=True) for name in names.split()}


METHODS: dict[str, dict[str, Effect]] = {
    "accelerator": {
        **_collectives("gather gather_for_metrics", "gathered"),
        **_collectives("pad_across_processes", "local"),
        **_collectives("reduce check_trigger wait_for_everyone load_state main_process_first"),
        **_sharded("save_state save_model get_state_dict"),
        "split_between_processes": Effect("share"),
        **_BACKWARD,
        **_each("log print", _SHOW),
        **_each("prepare prepare_model", _PREPARE),
        "prepare_data_loader": Effect("loader"),
    },
    "fabric": {
        **_collectives("barrier broadcast reduce load save"),
        **_collectives("all_gather", "gathered"),
        **_collectives("all_reduce", changes=(0,)),
        "setup": _PREPARE,
        "setup_module": _PREPARE._replace(label="setup_module"),
        "setup_dataloaders": Effect("loader"),
        **_BACKWARD,
        **_each("log log_dict print", _SHOW),
    },
    "trainer": _collectives("save_checkpoint", ""),
    "lightning_trainer": _collectives("save_checkpoint fit predict test validate", ""),
    "hf_trainer": {**_collectives("evaluate predict train", ""), **_sharded("save_model")},
    "strategy": {**_collectives(f"{_COMM} reduce_boolean_decision"), **_sharded("save_checkpoint")},
    "lightning_module": {
        **_collectives("all_gather", "gathered"),
        "manual_backward": _BACKWARD["backward"],
        **_LOGS,
    },
    "distmetrics_module": _LOGS,
    "callback": _LOGS,  # lent by the module while a trainer runs
    "deepspeed": {**_collectives("save_checkpoint load_checkpoint save_16bit_model", ""), **_BACKWARD},
    "logger": _each(f"{_LEVELS} {_SCALARS} log_dict", _SHOW),
    "metric": {"compute": collective("compute"), "update": Effect("update", "update")},
    "ddp": {"no_sync": Effect("no_sync")},
    "fsdp": {
        "clip_grad_norm_": collective("clip_grad_norm_"),
        "state_dict": collective("state_dict", ""),
    },
}
# Methods whose name alone says what they are, whatever they are called on.
TELLING = {
    **_collectives("consolidate_state_dict full_tensor gather_for_metrics wait_for_everyone", "gathered"),
    **_each(f"{_SCALARS} set_description set_postfix set_postfix_str", _SHOW),
    **_collectives("save_16bit_model", ""),
    "split_between_processes": Effect("share"),
    **_each("exists is_dir is_file", Effect("local_file")),
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
_CLASSES = {
    "lightning_module": "lightning.LightningModule",
    "data_module": "lightning.LightningDataModule",
    "callback": "lightning.Callback",
    "lightning_trainer": "lightning.Trainer",
    "fabric": "lightning.Fabric lightning.LightningLite",
    "strategy": "lightning.Strategy",
    "accelerator": "accelerate.Accelerator accelerate.PartialState",
    "deepspeed": "deepspeed.initialize deepspeed.DeepSpeedEngine",
    "hf_trainer": "transformers.Trainer transformers.Seq2SeqTrainer",
    "distmetrics_module": "distmetrics.Module",
    "module": "torch.Module",
    "dataset": "torch.Dataset torch.IterableDataset",
    "loader": "torch.DataLoader",
    "logger": "torch.SummaryWriter logging.Logger logging.getLogger",
    "metric": "torchmetrics.MetricCollection torchmetrics.Metric",
}
# By first and last part of a class's qualified name: everything between is where the framework keeps it.
FAMILIES = {name: family for family, names in _CLASSES.items() for name in names.split()}
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
