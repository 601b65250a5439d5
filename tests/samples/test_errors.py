"""What cannot be gathered is one error on every rank, before any sample moves; nothing is lost or left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import distmetrics as dm
from distmetrics.collectives import exchange
from distmetrics.collectives import gather_samples as module
from distmetrics.collectives.buckets import from_bytes, to_bytes
from distmetrics.collectives.wire import deserialize, serialize
from distmetrics.comm.communicator import SingleCommunicator
from distmetrics.testing import outcomes
from distmetrics.testing.recording import InterceptingCommunicator
from tests.backends import same_error
from tests.collectives.malicious import head_of, header_in, with_data, with_head
from tests.samples.ranks import batch

gather = dm.gather_samples


def odd(comm: Any, one: Any, others: Any) -> Any:
    """Rank 1 is the odd one."""
    return one if comm.rank == 1 else others


def own(comm: Any, tree: Any, **more: Any) -> Any:
    """Gather two samples of each rank, by the ids 0 to 5."""
    return gather([comm.rank, comm.rank + 3], tree, **more)


def ids(comm: Any, mine: Any) -> Any:
    return gather(odd(comm, mine, [comm.rank, comm.rank + 3]), PAIR)


PAIR, SELF = ["x", "y"], {"a": [{}]}
SELF["a"][0]["a"] = SELF["a"][0]
EYE, ALL = torch.eye(2), (0, 1, 2)
SPARSE, COMPLEX = EYE.to_sparse(), [torch.ones(1) * 1j] * 2
NOT_HERE = "1 of 5 expected ids did not come: 3; 1 came that nobody expects: -1"
NO_JSON = "the sample of the id 1 cannot be written as JSON: 'complex' object has no"
INPUT: list[Any] = [  # the ranks that the error names, what it says, and what each of three ranks does
    ((1,), NOT_HERE, lambda c: gather([odd(c, -1, c.rank), c.rank + odd(c, 0, 2)], PAIR, expected=[*range(5), 1])),
    ((), "1 id is expected, and 3 came", lambda c: gather(["abc"[c.rank]], ["x"], expected=1)),
    ((), "4 ids are expected, and 3 came", lambda c: gather(["abc"[c.rank]], ["x"], expected=4)),
    ((0, 2), "different values: 'a'", lambda c: gather(["aba"[c.rank]], {"n": [c.rank], "x": EYE[:1]})),
    ((1,), "1 id came with different values: 9", lambda c: gather([odd(c, 9, 0)] * 2, odd(c, PAIR, [1, 1]))),
    (ALL, "different values: 0", lambda c: gather([0], {"r": [torch.ones(odd(c, 1, 2))]})),
    (ALL, "dst= is 3, and must be a path, None or a rank", lambda c: own(c, PAIR, dst=3)),
    (ALL, "dst= is True", lambda c: own(c, PAIR, dst=True)),
    ((0,), "cannot write .: ", lambda c: own(c, PAIR, dst=".")),
]
KIND: list[Any] = [  # what rank 1 does alone
    ("['a'] is a str, which is no column", lambda c: own(c, {"a": odd(c, "xy", PAIR)})),
    ("contains itself", lambda c: gather([c.rank], odd(c, SELF, {"a": [1]}))),
    ("['a'] is a dict whose keys are not", lambda c: own(c, {"a": {odd(c, Path, "x"): PAIR}})),
    ("['a'] has the layout torch.sparse_coo", lambda c: own(c, {"a": odd(c, SPARSE, EYE)})),
    (NO_JSON, lambda c: own(c, {"a": odd(c, COMPLEX, PAIR)}, dst="file")),
    ("ids are [1, 2.0] (rank 1)", lambda c: ids(c, [1, 2.0])),
    ("ids are [True, False]", lambda c: ids(c, [True, False])),
    ("ids are 'ab' (rank 1)", lambda c: ids(c, "ab")),
    ("integers of at most 64 bits", lambda c: ids(c, [1, 1 << 70])),
]
MISMATCH: list[Any] = [
    ("rank 1 sends ids: strings, samples: list, ranks 0, 2 send ids: integers", lambda c: ids(c, PAIR)),
    ("samples: [0] list", lambda c: own(c, odd(c, (PAIR,), PAIR))),
    ("gather_samples to rank 0", lambda c: own(c, PAIR, dst=odd(c, 0, None))),
    ("gather_samples, expected: 6", lambda c: own(c, PAIR, expected=odd(c, 6, 7))),
]
CASES = [(dm.InputError, *row) for row in INPUT]
CASES += [(dm.InputTypeError, (1,), *row) for row in KIND] + [(dm.MismatchError, (1,), *row) for row in MISMATCH]


@pytest.mark.parametrize(("kind", "peers", "says", "call"), CASES)
def test_one_error_on_every_rank(
    kind: Any, peers: Any, says: str, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = same_error(outcomes(3, call), kind)
    assert error.peers == peers
    assert says in str(error)
    assert [*tmp_path.iterdir()] == []


def test_the_text_of_a_conflict() -> None:
    """The whole of it."""
    error = same_error(outcomes(2, lambda c: gather([0, 1], [f"of {c.rank}", "x"])), dm.InputError)
    assert str(error) == (
        "gather_samples: 1 id came with different values: 0\n\n"
        "  ranks 0-1  2 samples: 0, 1; of these: 0\n\n"
        "No sample was moved.\n"
        "Likely: samples dealt out twice whose values depend on their batch or on chance; or ids that count anew on "
        "every rank.\n"
        "Do:     give each sample the id that it has in the whole data set, and deal each out once."
    )


OPEN = Path.open


def open_full(path: Path, mode: str = "r", **options: Any) -> Any:
    """Make a new file whose every byte is refused once it gets as far as the disk."""
    if mode != "x":
        return OPEN(path, mode, **options)
    path.touch()
    return OPEN(Path("/dev/full"), "w", **options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("length", [1, 2000], ids=["at the end", "on the way"])
def test_a_full_disk(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is an error on every rank, and leaves the file as it was."""
    monkeypatch.setattr(module, "ROUND", 100)
    monkeypatch.setattr(Path, "open", open_full)
    (tmp_path / "file").write_text("before")

    def work(comm: Any) -> None:
        ids = [*range(comm.rank, 40, 2)]
        gather(ids, {"t": ["some text" * length] * 20}, dst=tmp_path / "file", comm=comm)

    error = same_error(outcomes(2, work), dm.InputError)
    assert "No space left on device" in str(error)
    assert error.peers == (0,)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"


class InterruptError(Exception):
    """Raised by a handler of the user's."""


class Interrupting(InterceptingCommunicator):
    """Raises in place of the third gather."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._left = 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def pass_on(self, op: str, make: Callable[..., Any], sent: list[Tensor], alone: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise InterruptError
        return make(*sent)


def test_an_interrupt_between_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever, and nothing is left behind."""
    monkeypatch.setattr(module, "ROUND", 100)

    def work(comm: Any) -> None:
        ids = [*range(comm.rank, 40, 2)]
        tree = {"t": ["some text"] * 20}
        try:
            gather(ids, tree, dst=tmp_path / "file", comm=Interrupting(comm) if comm.rank == 0 else comm)
        except InterruptError:
            dm.barrier(comm=comm)  # distlint: ignore[DL106] what this is about

    ended = outcomes(2, work)
    assert [type(outcome.error) for outcome in ended] == [dm.DivergedError] * 2
    assert [*tmp_path.iterdir()] == []


class Changing(SingleCommunicator):
    """Rank 0 of two: rank 1 sends what we do, but for some of its frames, by number, which are changed."""

    world_size = 2

    def __init__(self, crafts: dict[int, Callable[[bytes], bytes]]) -> None:
        self._crafts = crafts
        self._number = 0

    def all_gather(self, x: Tensor) -> list[Tensor]:
        self._number += 1
        frame = to_bytes(x)
        changed = self._crafts.get(self._number, bytes)(frame)
        return [x, from_bytes(changed[: len(frame)].ljust(len(frame), b"\1"))]

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        return x


TREE = {**batch([1, 2, 3, 4]), "t": ["a", "b", "c", "d"]}
FRAMES = 3  # meeting, digests, samples


def gathers(comm: Any) -> None:
    try:
        gathered = gather([1, 2, 3, 4], TREE, comm=comm)
    except dm.DistmetricsError:
        return
    assert gathered is not None
    for values in gathered.tree.values():
        try:
            repr(values)
        except dm.DistmetricsError:
            continue


@settings(max_examples=60)
@given(data=st.data())
def test_changed_frames(data: st.DataObject) -> None:
    """Other leaves, other sizes, other bytes: data, or our error."""

    def craft(frame: bytes) -> bytes:
        if data.draw(st.booleans()):
            head = head_of(frame)
            head[2] = data.draw(st.sampled_from([0, 1, 16, 100, 20_000]))
            return with_head(frame, head)
        start = exchange.HEADER_AREA + data.draw(st.integers(0, 600))
        return frame[:start] + data.draw(st.binary(min_size=1, max_size=200))

    gathers(Changing({data.draw(st.integers(1, FRAMES)): craft}))
    seen: list[str] = []
    gathers(Changing(dict.fromkeys(range(1, FRAMES + 2), lambda frame: (seen.append(header_in(frame)[0]), frame)[1])))
    assert seen == ["gather_samples", "all_gather_cat", "gather_samples"]  # each was to be changed


def sending(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """Put another value into a frame."""

    def craft(frame: bytes) -> bytes:
        start = exchange.HEADER_AREA
        sent = deserialize(from_bytes(frame[start : start + head_of(frame)[2]]))
        return with_data(frame, to_bytes(serialize(change(sent))))

    return craft


def own_ids(sent: Any) -> Any:
    return (*sent[:2], torch.tensor([5, 1, 1, 1]))


@pytest.mark.parametrize(
    "crafts",
    [
        {1: lambda sent: sent[:2]},
        {1: lambda sent: ("many", *sent[1:])},
        {1: lambda sent: (*sent[:2], [])},
        {1: lambda sent: (*sent[:2], ["1", 2])},
        {1: own_ids, 2: lambda sent: sent[1:]},
        {1: own_ids, 2: lambda sent: [sent[0][1:], *sent[1:]]},
        {1: own_ids, 2: lambda sent: None},
    ],
)
def test_values_that_no_rank_sends(crafts: dict[int, Any]) -> None:
    comm = Changing({number: sending(change) for number, change in crafts.items()})
    with pytest.raises(dm.MismatchError, match=r"rank( 1)? sent data that is no frame"):
        gather([1, 2, 3, 4], {"rows": torch.ones(4, 2)}, comm=comm)
    # a rank without samples makes its result of the others' template
    for template in ({"rows": 1}, [torch.ones(())], {"rows": torch.ones(2, 2)}):
        comm = Changing({1: sending(lambda sent, template=template: own_ids((sent[0], template)))})
        with pytest.raises(dm.DistmetricsError):
            gather([], [], comm=comm)


def test_lines_that_no_rank_sends_are_told_to_all(tmp_path: Path) -> None:
    """The rank that writes them must not leave the others to wait."""
    comm = Changing({1: sending(own_ids), 2: sending(lambda _: [["text", b"\xff"]])})
    with pytest.raises(dm.InputError, match=r"cannot write .*its samples"):
        gather([1, 2, 3, 4], ["a", "b", "c", "d"], dst=tmp_path / "file", comm=comm)
