"""Process groups along an axis of a mesh: which tests of a rank part the ranks of one group, and which do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.api import axis_of_name, have_in_common, name_effect
from tests.lint.helpers import check, lines

# How code asks for the rank on an axis, and how it names the group along one.
RANKS = (
    'mesh.get_local_rank("{axis}")',
    'mesh.get_local_rank(mesh_dim="{axis}")',
    'mesh["{axis}"].get_local_rank()',
    'parallel_dims.get_mesh("{axis}").get_local_rank()',
    "{axis}_mesh.get_local_rank()",
    'dist.get_rank(mesh.get_group("{axis}"))',
    "dist.get_rank(group={axis}_group)",
    "dist.get_group_rank({axis}_group, dist.get_rank())",
    "parallel_state.get_{long}_parallel_rank()",
    "get_{long}_parallel_rank()",
    "{axis}_rank",
    "self.{axis}_rank",
    "self.{long}_parallel_rank",
)
GROUPS = (
    'mesh.get_group("{axis}")',
    'mesh["{axis}"].get_group()',
    'parallel_dims.world_mesh["{axis}"].get_group()',
    "parallel_state.get_{long}_parallel_group()",
    "get_{long}_parallel_group()",
    "{axis}_group",
    "self.{axis}_group",
)
LONG = {"dp": "data", "tp": "tensor_model", "pp": "pipeline_model", "cp": "context"}
CODE = """\
import torch.distributed as dist
from megatron.core import parallel_state

class Part:
    def step(self, x, mesh, parallel_dims):
        if {test}:
            {call}
"""
AXES = st.sampled_from(sorted(LONG))


def reported(test: str, call: str, *codes: str) -> bool:
    found = check(CODE.format(test=test, call=call), *(codes or ("DL101",)))
    assert all(each.line == 7 for each in found)
    return bool(found)


def named(form: str, axis: str) -> str:
    return form.format(axis=axis, long=LONG[axis])


@given(st.sampled_from(RANKS), st.sampled_from(GROUPS), AXES, AXES)
def test_a_rank_parts_the_group_of_its_axis_alone(rank: str, group: str, asked: str, along: str) -> None:
    test, call = f"{named(rank, asked)} == 0", f"dist.all_reduce(x, group={named(group, along)})"
    assert reported(test, call) is (asked == along)


@given(st.sampled_from(RANKS), AXES)
def test_a_rank_on_an_axis_parts_all_ranks(rank: str, axis: str) -> None:
    found = check(CODE.format(test=f"{named(rank, axis)} == 0", call="dist.barrier()"), "DL101")
    assert [each.message for each in found] == [f"only {axis} rank 0 reaches this barrier: it waits for ever"]
    assert found[0].condition is None


@given(st.sampled_from(GROUPS), AXES)
def test_the_first_rank_of_all_parts_every_named_group(group: str, axis: str) -> None:
    call = f"dist.all_reduce(x, group={named(group, axis)})"
    assert reported("dist.get_rank() == 0", call)
    assert reported("dist.get_rank() == 3", call)
    assert not reported("dist.get_rank() in (0, 1, 2, 3)", call)
    assert not reported("dist.get_rank() % 2", call)


@pytest.mark.parametrize(
    ("test", "call", "expected"),
    [
        ("parallel_state.is_pipeline_last_stage()", "dist.barrier()", True),
        ("parallel_state.is_pipeline_last_stage()", "dist.barrier(group=pp_group)", True),
        ("parallel_state.is_pipeline_first_stage()", "dist.barrier(group=tp_group)", False),
        ("self.is_last_stage", "dist.barrier(parallel_state.get_data_parallel_group())", False),
        ("tp_rank == 0 and pp_rank == 0", "dist.barrier(group=dp_group)", False),
        ("tp_rank == 0 and pp_rank == 0", "dist.barrier(group=pp_group)", True),
        ("tp_rank + pp_rank == 0", "dist.barrier(group=pp_group)", True),
        ("tp_rank + pp_rank == 0", "dist.barrier(group=dp_group)", False),
        ("tp_rank == 0", 'dist.barrier(group=mesh["dp", "tp"].get_group())', True),
        ("cp_rank == 0", "dist.barrier(group=get_tensor_and_context_parallel_group())", True),
        ("dp_rank == 0", 'dist.barrier(group=mesh.get_group("dp_shard"))', True),
        ('mesh.get_local_rank("dp_replicate") == 0', 'dist.barrier(group=mesh.get_group("dp_shard"))', False),
        ("dp_rank == 0", "dist.barrier(group=get_expert_data_parallel_group())", False),
        ("dist.get_rank(self.group) == 0", "dist.barrier(self.group)", True),
        ("dist.get_rank(self.group) == 0", "dist.barrier(self.other)", False),
        ("dist.get_rank() == 0", "dist.barrier(self.group)", False),
        ("mesh.get_local_rank(0) == 0", "dist.barrier(mesh.get_group(0))", True),
        ("mesh.get_local_rank(0) == 0", "dist.barrier(mesh.get_group(1))", False),
        ("dist.get_group_rank(tp_group, 0) == 0", "dist.barrier()", False),
        ("dist.get_rank() == dist.get_global_rank(tp_group, 0)", "dist.barrier(tp_group)", False),
        ("lora_rank == 0", "dist.barrier()", False),
        ("tensor_rank == 0", "dist.barrier()", False),
        ('self.meshes["vertices"].shape[0] == 0', "dist.barrier()", False),
    ],
)
def test_which_ranks_part(test: str, call: str, expected: bool) -> None:
    assert reported(test, call) is expected


def test_a_mesh_and_groups_that_an_object_keeps() -> None:
    source = """\
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

class Part:
    def __init__(self):
        self.layout = init_device_mesh("cuda", (2, 4), mesh_dim_names=("outer", "inner"))
        part = self.layout["inner"]
        self.place, self.near, self.far = part.get_local_rank(), part.get_group(), self.layout["outer"].get_group()

    def step(self, x):
        if self.place == 0:
            dist.all_reduce(x, group=self.far)
            dist.all_reduce(x, group=self.near)
"""
    assert lines(source, "DL101") == [13]


def test_a_helper_is_given_the_group() -> None:
    source = """\
import torch.distributed as dist

def total(x, group=None):
    dist.all_reduce(x, group=group)

def first(x, group=None):
    if dist.get_rank(group) == 0:
        dist.broadcast(x, 0, group=group)

def step(x, mesh):
    if mesh.get_local_rank("pp") == 0:
        total(x, mesh.get_group("dp"))
        total(x, mesh.get_group("pp"))
        total(x)
"""
    assert lines(source, "DL101") == [8, 13, 14]


def test_the_getters_of_a_file_tell_by_their_names_and_groups() -> None:
    source = """\
import torch.distributed as dist

_GROUP = None

def get_tensor_model_parallel_group():
    return _GROUP

def get_tensor_model_parallel_rank():
    return dist.get_rank(group=get_tensor_model_parallel_group())

def step(x, dp_group):
    if get_tensor_model_parallel_rank() == 0:
        dist.all_reduce(x, group=dp_group)
        dist.all_reduce(x, group=get_tensor_model_parallel_group())
"""
    assert lines(source, "DL101") == [14]


def test_both_arms_meet_in_one_group() -> None:
    source = """\
import torch.distributed as dist

def step(x, pp_rank, pp_group, tp_group):
    if pp_rank == 0:
        dist.broadcast(x, 0, group=pp_group)
    else:
        dist.all_reduce(x, group=tp_group)
        dist.broadcast(x, 0, group=pp_group)
"""
    assert lines(source, "DL101") == []


def test_no_repair_moves_a_call_of_a_group() -> None:
    source = CODE.format(test="tp_rank == 0", call="dist.barrier(group=tp_group)")
    assert [each.fix for each in check(source, "DL101")] == [None]


@pytest.mark.parametrize(
    ("part", "group", "expected"),
    [
        ("files[dp_rank::parts]", "dp_group", True),
        ("files[dp_rank::parts]", "None", True),
        ("files[dp_rank::parts]", "tp_group", False),
        ("files[dist.get_rank()::parts]", "None", True),
        ("files[dist.get_rank()::parts]", "tp_group", False),
        ('range(mesh.get_local_rank("cp"), 9, parts)', "cp_group", True),
        ('range(mesh.get_local_rank("cp"), 9, parts)', "dp_group", False),
    ],
)
def test_loops_begin_at_the_rank_on_an_axis(part: str, group: str, expected: bool) -> None:
    source = f"""\
import torch.distributed as dist

def read(files, mesh, dp_rank, parts, dp_group, tp_group, cp_group):
    for file in {part}:
        dist.barrier(group={group})
"""
    assert lines(source, "DL104") == ([5] if expected else [])


@given(AXES, AXES)
def test_what_axes_have_in_common_is_told_alike_by_both(first: str, second: str) -> None:
    joined = axis_of_name(f"{first}_{second}")
    assert have_in_common(first, second) == have_in_common(second, first) == (first == second)
    assert have_in_common(joined, first)
    assert have_in_common(second, joined)


@pytest.mark.parametrize(
    ("name", "kind", "axis"),
    [
        ("get_data_parallel_rank", "rank", "dp"),
        ("get_pipeline_model_parallel_group", "group", "pp"),
        ("get_model_parallel_group", "group", "tp"),
        ("get_tensor_and_data_parallel_group", "group", "tp+dp"),
        ("get_expert_model_parallel_rank", "rank", "ep"),
        ("get_expert_tensor_parallel_rank", "rank", "expert_tensor"),
        ("dp_shard_cp_mesh", "mesh", "shard+cp"),
        ("is_pipeline_last_stage", "last", "pp"),
        ("global_rank", "rank", ""),
        ("data_parallel_world_size", "world", ""),
    ],
)
def test_what_a_name_says(name: str, kind: str, axis: str) -> None:
    effect = name_effect(name)
    assert effect is not None
    assert (effect.kind, effect.label) == (kind, axis)
