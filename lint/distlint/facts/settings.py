"""For how many devices files of settings and shell scripts say that trainers are made."""

from __future__ import annotations

import re

from distlint.facts.trainers import ONE, OTHER

SEVERAL = "several processes"
_COUNT = re.compile(
    rb"""(?:^|[\s"'{,.+-])(?:devices|gpus|tpu_cores|num_nodes|num_processes|nproc[-_]per[-_]node)"""
    rb"""["']?[ \t]*[:= \t][ \t]*(["']?\\?\[[^\]\n]*\]|[^\s,\#}]*)""",
    re.MULTILINE,
)
_ONE = re.compile(rb"""^["']?(?:[01]|\\?\[\s*["']?\d+["']?\s*\\?\])["']?$""")
_MANY = re.compile(
    rb"""(?:strategy|accelerator|distributed_backend)["']?\s*[:=]\s*["']?(?:ddp|fsdp|deepspeed|horovod)"""
    rb"|(?:DDP|FSDP|DeepSpeed|FullySharded)\w*(?:Strategy|Plugin)|torchrun|torch\.distributed|accelerate launch"
)


def read_set_devices(source: bytes) -> frozenset[str]:
    """What a YAML, JSON or shell file says of devices: one, others, or nothing."""
    if _MANY.search(source):
        return frozenset({OTHER})
    return frozenset(ONE if _ONE.match(found[1].strip()) else OTHER for found in _COUNT.finditer(source))
