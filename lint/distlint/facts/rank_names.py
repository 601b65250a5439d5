"""What ranks, tests of the rank and world sizes are called: by convention, and in the frameworks that we know."""

from __future__ import annotations

GLOBAL_ZERO = "rank==0"
LOCAL_ZERO = "local_rank==0"

# Names that say by convention, and in every framework that we know, "I am the first process".
ZERO_FLAGS = {
    **dict.fromkeys(
        (
            "is_global_zero",
            "is_main_process",
            "is_main",
            "is_master",
            "is_master_process",
            "is_rank_zero",
            "is_rank_0",
            "is_rank0",
            "is_first_worker",
            "is_primary",
            "is_world_process_zero",
            "is_master_rank",
            "is_main_rank",
            "is_root",
            "master_process",
            "is_primary_process",
            "is_chief",
            "is_master_ordinal",
            "is_master_proc",
            "is_root_proc",
            "is_root_process",
            "rank_zero",
        ),
        GLOBAL_ZERO,
    ),
    **dict.fromkeys(
        (
            "is_local_main_process",
            "is_local_main",
            "is_local_master",
            "is_local_zero",
            "is_local_process_zero",
            "is_local_rank_zero",
        ),
        LOCAL_ZERO,
    ),
}
FLAGS = {"is_last_process": "rank==last", "is_last_rank": "rank==last"}
RANKS = {
    "rank": "rank",
    "global_rank": "rank",
    "get_rank": "rank",
    "get_global_rank": "rank",
    "process_index": "rank",
    "get_ordinal": "rank",
    "world_rank": "rank",
    "my_rank": "rank",
    "proc_rank": "rank",
    "proc_id": "rank",
    "distributed_rank": "rank",
    "ddp_rank": "rank",
    "dist_rank": "rank",
    "rank_id": "rank",
    "local_rank": "local_rank",
    "get_local_rank": "local_rank",
    "local_process_index": "local_rank",
    "get_node_local_rank": "local_rank",
    "ddp_local_rank": "local_rank",
}
# Whether there is more than one process: the same on every rank, and true where a job can hang.
# Decorators that let the first process alone run the function.
GUARD_DECORATORS = {
    "rank_zero_only": GLOBAL_ZERO,
    "rank0_only": GLOBAL_ZERO,
    "rank_0_only": GLOBAL_ZERO,
    "on_main_process": GLOBAL_ZERO,
    "main_process_only": GLOBAL_ZERO,
    "master_only": GLOBAL_ZERO,
    "is_main_process_only": GLOBAL_ZERO,
    "only_on_main_process": GLOBAL_ZERO,
    "on_local_main_process": LOCAL_ZERO,
}
RANK_TOKENS: tuple[bytes, ...] = (
    b"rank",
    b"RANK",
    b"process_index",
    b"get_ordinal",
    b"proc_id",
    b"PROCID",
    b"LOCALID",
    *sorted(name.encode() for name in (*ZERO_FLAGS, *FLAGS, *GUARD_DECORATORS) if "rank" not in name),
)
