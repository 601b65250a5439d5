"""What stands in the bytes of every file that has a collective, or a test of the rank: for the prefilter."""

from __future__ import annotations

import re

from distlint.api.tables import FUNCTIONS, METHODS, TELLING

_KINDS = ("backward", "collective", "wrap")
_TELLING = tuple(name for name, effect in TELLING.items() if effect.kind == "collective")
_METHODS = tuple(name for methods in METHODS.values() for name, effect in methods.items() if effect.kind in _KINDS)
# The library that a function comes from, or what tells of a receiver.
COLLECTIVE_TOKENS: tuple[bytes, ...] = (
    b"distributed",
    b"dist.",
    b"distmetrics",
    b"deepspeed",
    b"composer",
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
    b"ds_engine",
    b"model_engine",
    *sorted({name.encode() for name in (*METHODS["trainer"], *METHODS["deepspeed"], *_TELLING)} - {b"backward"}),
)
# What wraps a model for several ranks, or takes it out of a wrapper.
WRAPPER_TOKENS = (
    b"DistributedDataParallel",
    b"DDP",
    b"fully_shard",
    b"FullyShard",
    b"FSDP",
    b"DeepSpeedEngine",
    b"ccelerat",
    b"abric",
    b".module",
    b"'module'",
    b'"module"',
    b"no_sync",
    b"unwrap_model",
)
# What tests of the rank are called, see ``lookup.name_effect``.
RANK_TOKENS: tuple[bytes, ...] = (
    b"rank",
    b"RANK",
    b"PROCID",
    b"LOCALID",
    b"is_main",
    b"is_master",
    b"is_primary",
    b"is_root",
    b"is_chief",
    b"is_global",
    b"is_world",
    b"is_local",
    b"is_last_process",
    b"main_process",
    b"master_process",
    b"main_only",
    b"master_only",
    b"process_index",
    b"get_ordinal",
    b"proc_id",
)
_CALLED = re.compile(
    rb"\b(?:"
    + "|".join(
        sorted(
            {name.rpartition(".")[2] for name, effect in FUNCTIONS.items() if effect.kind in _KINDS}
            | {*_METHODS, *_TELLING, "state_dict"}
        )
    ).encode()
    + rb")\b"
)
_LICENCE = re.compile(rb"distributed(?= under the | on an )")


def may_have_collective(source: bytes) -> bool:
    """True if one of the tokens and the name of a call are in a file; how a licence distributes it does not count."""
    has_token = any(token in source for token in COLLECTIVE_TOKENS if token != b"distributed")
    if not has_token and source.count(b"distributed") <= len(_LICENCE.findall(source)):
        return False
    return _CALLED.search(source) is not None
