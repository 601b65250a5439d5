"""What stands in the bytes of every file that has a collective, or a test of the rank: for the prefilter."""

from __future__ import annotations

import re

from distlint.api.tables import FUNCTIONS, METHODS, TELLING

_KINDS = ("backward", "collective", "wrap")
_TELLING = tuple(name for name, effect in TELLING.items() if effect.kind == "collective")
_METHODS = tuple(name for methods in METHODS.values() for name, effect in methods.items() if effect.kind in _KINDS)
_HINTS = """
    distributed dist. distmetrics deepspeed horovod torch_xla torchmetrics torcheval ccelerat abric LightningLite
    strategy training_type_plugin DistributedDataParallel Trainer all_gather detectron2 manual_backward mmengine
    state_dict_type ds_engine model_engine
"""
_OWN = {*METHODS["trainer"], *METHODS["deepspeed"], *_TELLING} - {"backward"}
_RANKS = """
    rank RANK PROCID LOCALID is_main is_master is_primary is_root is_chief is_global is_world is_local is_last_process
    main_process master_process main_only master_only process_index get_ordinal proc_id _stage get_coordinate
"""


def _tokens(*words: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in words)


# The library that a function comes from, or what tells of a receiver.
COLLECTIVE_TOKENS = _tokens("composer", *_HINTS.split(), *sorted(_OWN))
# What wraps a model for several ranks, or takes it out of a wrapper.
_WRAPPERS = """
    DistributedDataParallel DDP fully_shard FullyShard FSDP DeepSpeedEngine ccelerat abric .module 'module' "module"
    no_sync unwrap_model
"""
WRAPPER_TOKENS = _tokens(*_WRAPPERS.split())
# What tests of the rank are called, see ``lookup.name_effect``.
RANK_TOKENS = _tokens(*_RANKS.split())
_FUNCTIONS = {name.rpartition(".")[2] for name, effect in FUNCTIONS.items() if effect.kind in _KINDS}
_CALLED = re.compile(rb"\b(?:" + "|".join(sorted({*_FUNCTIONS, *_METHODS, *_TELLING, "state_dict"})).encode() + rb")\b")
_LICENCE = re.compile(rb"distributed(?= under the | on an )")


def may_have_collective(source: bytes) -> bool:
    """True if one of the tokens and the name of a call are in a file; how a licence distributes it does not count."""
    has_token = any(token in source for token in COLLECTIVE_TOKENS if token != b"distributed")
    if not has_token and source.count(b"distributed") <= len(_LICENCE.findall(source)):
        return False
    return _CALLED.search(source) is not None


def may_reduce(source: bytes) -> bool:
    """True if a file may have a collective, or logs with ``sync_dist``."""
    return b"sync_dist" in source or may_have_collective(source)
