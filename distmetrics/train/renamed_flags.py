"""Flags of older guides and of other trainers: today's names, or what to do instead."""

import difflib
import inspect
from collections.abc import Iterable, Mapping

from distmetrics.errors import ConfigurationError

# What a flag of an older guide is called today.
_TODAY = {
    "resume_from_checkpoint": "fit(..., ckpt_path=...)",
    "distributed_backend": "strategy=...",
    "use_ddp": "strategy='ddp'",
    "use_ddp2": "strategy='ddp2'",
    "use_dp": "strategy='dp'",
    "num_tpu_cores": "tpu_cores=..., or accelerator='tpu', devices=...",
    "tpus": "accelerator='tpu', devices=...",
    "num_tpus": "accelerator='tpu', devices=...",
    "num_processes": "devices=..., accelerator='cpu'",
    "auto_select_gpus": "devices='auto'",
    "ipus": "accelerator='gpu', 'tpu' or 'cpu', and devices=...: there is no strategy for IPUs",
    "hpus": "accelerator='gpu', 'tpu' or 'cpu', and devices=...: there is no strategy for HPUs",
    "nb_gpu_nodes": "num_nodes=...",
    "nb_gpus": "devices=..., accelerator='gpu'",
    "num_gpus": "devices=..., accelerator='gpu'",
    "num_gpu_nodes": "num_nodes=...",
    "cluster_environment": "plugins=...",
    "training_type_plugin": "strategy=...",
    "weights_summary": "enable_model_summary=...",
    "replace_sampler_ddp": "use_distributed_sampler=...",
    "progress_bar_refresh_rate": "enable_progress_bar=...",
    "show_progress_bar": "enable_progress_bar=...",
    "process_position": "enable_progress_bar=...",
    "checkpoint_callback": "enable_checkpointing=..., and callbacks=[ModelCheckpoint(...)]",
    "early_stop_callback": "callbacks=[EarlyStopping(...)]",
    "weights_save_path": "callbacks=[ModelCheckpoint(dirpath=...)]",
    "default_save_path": "default_root_dir=...",
    "row_log_interval": "log_every_n_steps=...",
    "flush_logs_every_n_steps": "log_every_n_steps=...",
    "log_save_interval": "log_every_n_steps=...",
    "train_percent_check": "limit_train_batches=...",
    "val_percent_check": "limit_val_batches=...",
    "test_percent_check": "limit_test_batches=...",
    "overfit_pct": "limit_train_batches=..., and the same loader for validation",
    "overfit_batches": "limit_train_batches=..., and the same loader for validation",
    "accumulate_grad_steps": "accumulate_grad_batches=...",
    "gradient_clip": "gradient_clip_val=...",
    "gradient_clipping": "gradient_clip_val=...",
    "nb_sanity_val_steps": "num_sanity_val_steps=...",
    "max_nb_epochs": "max_epochs=...",
    "check_val_every_n_epochs": "check_val_every_n_epoch=...",
    "amp_level": "precision=...",
    "amp_backend": "precision=...",
    "use_amp": "precision='16-mixed'",
}
_LEAST = (
    "say EarlyStopping(..., patience=n), which stops after n epochs at the earliest, or set "
    "trainer.should_stop in a callback of your own."
)
_ONCE = "change what the data set yields in on_train_epoch_start: loaders are asked for once a fit."
# What there is no flag for, and what to do instead.
_WITHOUT = {
    "min_epochs": _LEAST,
    "min_steps": _LEAST,
    "min_nb_epochs": _LEAST,
    "max_time": "set trainer.should_stop in a callback of your own when the time is over.",
    "reload_dataloaders_every_epoch": _ONCE,
    "reload_dataloaders_every_n_epochs": _ONCE,
    "log_gpu_memory": "log torch.cuda.max_memory_allocated() in a step, or in a callback of your "
    "own.",
    "track_grad_norm": "log the norm in on_before_optimizer_step of the module.",
    "gradient_clip_algorithm": "clip values in on_before_optimizer_step: gradient_clip_val=... "
    "clips the norm.",
    "prepare_data_per_node": "leave it out: prepare_data is called once a machine.",
    "truncated_bptt_steps": "set self.automatic_optimization = False, and step after so many "
    "time steps.",
    "move_metrics_to_cpu": "leave it out: values are kept on the CPU.",
    "stochastic_weight_avg": "average the weights in a callback of your own, by "
    "torch.optim.swa_utils.",
    "profiler": "run torch.profiler around fit, or in a callback of your own.",
    "sync_batchnorm": "call nn.SyncBatchNorm.convert_sync_batchnorm(module) before fit.",
    "benchmark": "set torch.backends.cudnn.benchmark = True.",
    "inference_mode": "leave it out: evaluations run without gradients.",
    "auto_lr_find": "find the learning rate by fits of your own: Trainer(max_steps=...).",
    "auto_scale_batch_size": "find the batch size by fits of your own: Trainer(max_steps=...).",
    "multiple_trainloader_mode": "pass one loader, whose data set joins the others.",
}


def refuse_unknown(owner: type, flags: Iterable[str]) -> None:
    """Refuse flags that ``owner`` does not take.

    Raises:
        ConfigurationError: a flag of an older guide.
        TypeError: any other.
    """
    names = [name for name in inspect.signature(owner).parameters if name != "unknown"]
    who = owner.__name__
    advice = {
        flag: f"say {today}"
        for flag, today in _TODAY.items()
        if who == "Trainer" or any(name in today for name in names)
    }
    if who == "Trainer":
        advice |= _WITHOUT
    for flag in flags:
        if flag in advice:
            what = f"{who}({flag}=...) is a flag of older guides"
            if flag in _WITHOUT:
                what += " or of other trainers, and there is none for it here"
            raise ConfigurationError(what, do=advice[flag])
        hint = _hint(flag, names, advice)
        raise TypeError(f"{who} got an unexpected keyword argument {flag!r}{hint}")


def _hint(flag: str, names: list[str], advice: Mapping[str, str]) -> str:
    """Name the flag that is near, or what to do instead of one of older guides."""
    near = difflib.get_close_matches(flag, [*names, *advice], n=1)
    if not near:
        return ""
    if near[0] in names:
        return f"; did you mean {near[0]!r}?"
    return f"; {near[0]!r} of older guides is near: {advice[near[0]]}"
