"""The pure parts: headers and their encoding, packing, frames. No world is needed to test them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics import InputError, MismatchError, SingleCommunicator, message
from distmetrics.collectives.buckets import ALIGN, LeafSpec, layout, pack, unpack
from distmetrics.collectives.exchange import HEADER_AREA, exchange, frame_size
from distmetrics.collectives.header import Header, Problem, agree, prepare
from distmetrics.collectives.wire import deserialize
from distmetrics.comm.communicator import one_call
from distmetrics.errors import Site
from distmetrics.message import decode, reading
from distmetrics.testing import run
from tests.comm.ranks import DTYPES, same_bits

names = st.text(st.characters(codec="utf-8"), max_size=8)
leaf_specs = st.builds(
    LeafSpec,
    names,
    st.sampled_from([str(dtype).removeprefix("torch.") for dtype in DTYPES]),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    names,
)
headers = st.builds(
    Header,
    names,
    names,
    names,
    st.lists(leaf_specs, max_size=4).map(tuple),
    st.none() | st.builds(Site, names, st.integers(0, 1 << 40), names),
    st.none() | st.builds(Problem, st.just("InputError"), names, names),
)


@settings(max_examples=50)
@given(headers, headers)
def test_a_header_survives_the_wire_and_equal_bytes_mean_equal_headers(one: Header, other: Header) -> None:
    """Names may hold quotes, anything. The fast way compares bytes alone."""
    assert decode(Header, one.encode(), "it") == one
    assert (one.encode() == other.encode()) == (one == other)


@settings(max_examples=50)
@given(st.lists(headers, min_size=1, max_size=2).map(lambda few: [*few, *few]))
def test_what_ranks_must_have_alike(each: Sequence[Header]) -> None:
    """All but the line."""
    alike = len({(m.op, m.name, m.tree, m.leaves) for m in each}) == 1
    is_agreed = alike and not any(m.problem for m in each)
    with contextlib.nullcontext() if is_agreed else pytest.raises((MismatchError, InputError)):
        agree(each, 0)


dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=100)
@given(st.lists(st.tuples(dtypes, shapes, st.booleans()), max_size=8))
def test_packed_tensors_come_out_unchanged(made: list[tuple[torch.dtype, tuple[int, ...], bool]]) -> None:
    """Any mix of dtypes and shapes, transposed or not, and a key beside the dtype."""
    tensors = [filled(dtype, shape, index) for index, (dtype, shape, _) in enumerate(made)]
    tensors = [x.transpose(0, -1) if flip and x.ndim > 1 else x for x, (_, _, flip) in zip(tensors, made, strict=True)]
    keys = ["sum" if flip else "max" for _, _, flip in made]
    where = layout(tensors, keys)
    run_of_bytes = pack(tensors, where, torch.device("cpu"))
    assert (run_of_bytes.dtype, run_of_bytes.numel()) == (torch.uint8, where.nbytes)
    assert all(same_bits(new, old) for new, old in zip(unpack(run_of_bytes, where), tensors, strict=True))
    end = 0
    for bucket in where.buckets:  # each starts where any dtype may, after the end of the one before
        assert bucket.start % ALIGN == 0
        assert bucket.start >= end
        end = bucket.stop
    assert where.nbytes >= end
    assert where.nbytes % ALIGN == 0


@given(st.integers(1, 100_000))
def test_frames_are_aligned_and_bounded(world_size: int) -> None:
    """Data starts behind the header's area, which must be aligned; all frames together stay small."""
    assert HEADER_AREA % ALIGN == 0
    assert frame_size(world_size) % ALIGN == 0
    assert frame_size(world_size) * world_size <= max(1 << 22, HEADER_AREA * world_size)


ROUND_THE_ROOM = st.integers(0, 300) | st.integers(28_600, 28_700) | st.integers(0, 60_000)


@settings(max_examples=40)
@given(st.lists(st.tuples(ROUND_THE_ROOM, st.integers(0, 40_000)), min_size=2, max_size=3))
def test_what_ranks_exchange_arrives_whole(sizes: list[tuple[int, int]]) -> None:
    """Data on both sides of what is inline, headers on both of their room."""
    letters = bytes(torch.randint(33, 120, (40_000,), generator=torch.Generator().manual_seed(0)).tolist()).decode()

    def work(comm: Any) -> bool:
        def data(rank: int) -> torch.Tensor:
            return (torch.arange(sizes[rank][0]) % 251 + rank).to(torch.uint8)

        met = exchange(comm, Header(letters[: sizes[comm.rank][1]]), data(comm.rank))
        for rank, run_of_bytes in enumerate(met.move()):
            assert torch.equal(run_of_bytes, data(rank))
        assert [header.op for header in met.headers()] == [letters[:length] for *_, length in sizes]
        return True

    assert run(len(sizes), lambda comm: one_call(lambda *, comm: work(comm))(comm=comm)) == [True] * len(sizes)


def test_an_interrupt_where_bytes_are_read_is_the_user_s_own() -> None:
    """As the handler of a timer raises it; or as one that is set from outside strikes, in any line, ours too."""

    class OutOfTime(Exception):  # noqa: N818
        pass

    for kind in (ValueError, TimeoutError, KeyboardInterrupt):
        with pytest.raises(kind), reading("its values"):
            raise kind
    line = compile("raise OutOfTime", message.__file__, "exec")
    with pytest.raises(OutOfTime), reading("its values"):
        exec(line, {"OutOfTime": OutOfTime})
    with pytest.raises(MismatchError, match="its values: "), reading("its values"):
        deserialize(torch.full((64,), 1, dtype=torch.uint8))


def test_numbers_become_tensors_as_wide_as_pythons() -> None:
    """A Python float has 53 bits; as float32 it would lose half of them without a word."""
    mine = prepare("all_gather", "", [1, 0.1, True, 1j], SingleCommunicator())
    assert [x.dtype for x in mine.tensors] == [torch.int64, torch.float64, torch.bool, torch.complex128]
    assert mine.tensors[1].item() == 0.1
