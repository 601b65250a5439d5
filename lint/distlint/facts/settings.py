"""For how many devices files of settings and shell scripts say that trainers are made."""

from __future__ import annotations

import re

from distlint.facts.trainers import ONE, OTHER

SEVERAL = "several processes"
WHOLE = "all files"  # of a project are looked at: what none of them uses is used by nobody
LOOP = "a loop of its own"  # trains something in the project
DYNAMIC = "names that are looked up"  # import files that no import names
NAMED = "class "  # and its name: what settings make
MARKS = frozenset({SEVERAL, WHOLE, LOOP, DYNAMIC})
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
