"""Accelerate: every sample once in ``metric.update`` and in ``gather_for_metrics``, whatever was prepared before."""

from __future__ import annotations

import itertools
import os
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from distmetrics import Log, all_gather_object
from distmetrics.data import exact, fresh
from distmetrics.errors import ConfigurationError, InputError
from distmetrics.testing import run
from tests.integrations.modules import Rows, elastic

pytest.importorskip("accelerate")
from distmetrics.integrations.accelerate import attach_log, prepare

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(240)]

SETTINGS: list[dict[str, Any]] = [
    {},
    {"dispatch_batches": True},
    {"dispatch_batches": False},
    {"split_batches": True},
    {"split_batches": True, "dispatch_batches": True},
    {"even_batches": False},
]
COUNTS = (0, 1, 3, 8, 9)


def accelerators(comm: Any, **options: Any) -> Any:
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.state import AcceleratorState, GradientState

    os.environ |= elastic(comm)
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    assert accelerator.num_processes == comm.world_size
    return accelerator


def read(accelerator: Any, loader: Any) -> tuple[list[int], list[int], list[list[str]]]:
    """Return what a loop updates a metric with, what it gathers, and what it gathers as texts, batch by batch."""
    seen, gathered, texts = [], [], []
    warnings.filterwarnings("ignore", message="gather_for_metrics: the rows of the last round")
    for batch in loader:
        seen += fresh(batch).tolist()
        tree = accelerator.gather_for_metrics({"x": (batch, batch.float()), "y": [batch[:, None].repeat(1, 2)]})
        assert torch.equal(tree["x"][0], tree["x"][1].long())
        assert torch.equal(tree["x"][0], tree["y"][0][:, 1])
        gathered += tree["x"][0].tolist()
        mine = [str(x) for x in batch.tolist()]
        texts.append(accelerator.gather_for_metrics(mine, use_gather_object=True))
    return seen, gathered, texts


def check_fresh(theirs: Any, count: int, *, is_known: bool, case: Any) -> None:
    """Accelerate's own loader, with its repeats cut off; or it is not known how many they are."""
    if is_known:
        kept = all_gather_object([row for batch in theirs for row in fresh(batch).tolist()])
        assert sorted(itertools.chain(*kept)) == list(range(count)), case
    batches = iter(() if is_known else theirs)
    for batch in itertools.islice(batches, 1):
        with pytest.raises(InputError, match="it is not known how many"):
            fresh(batch)
    assert len([*batches]) <= count  # to its end, until which Accelerate takes it for one that is being read


def every_loop(comm: Any) -> int:
    checked = 0
    for options, kind, count in itertools.product(SETTINGS, ("map", "stream"), COUNTS):
        if options.get("even_batches") is False and kind != "map":
            continue
        accelerator = accelerators(comm, **options)
        size = 2 * comm.world_size if options.get("split_batches") else 2 - count % 2
        plain = DataLoader(Rows(torch.arange(count)) if kind == "stream" else torch.arange(count), batch_size=size)
        theirs = accelerator.prepare(plain)
        is_known = kind != "stream" or options.get("dispatch_batches") is not False
        if count:
            check_fresh(theirs, count, is_known=is_known, case=(options, kind, count))
        for first, equal in ((False, None), (True, None), (True, True)):
            case = (options, kind, count, first, equal)
            loader = prepare(accelerator, theirs if first else plain, equal_batches=equal)
            seen, gathered, texts = read(accelerator, loader)
            ranks = all_gather_object((seen, len(texts)))
            assert sorted(itertools.chain(*(rows for rows, _ in ranks))) == list(range(count)), case
            is_through = len(texts) < max(read_by for _, read_by in ranks)
            assert gathered == list(range(len(gathered) if is_through else count)), case  # rank 0 never is
            assert [*itertools.chain(*texts)] == [str(x) for x in gathered], case
            batches = {read_by for _, read_by in ranks}
            assert max(batches) - min(batches) <= (0 if equal else 1), case
            checked += 1
    return checked


def test_every_sample_once_and_gathered_in_order() -> None:
    assert run(3, every_loop, backend="gloo", limit=220) == [165] * 3


def special_cases(comm: Any) -> dict[str, Any]:
    from accelerate import skip_first_batches

    result: dict[str, Any] = {}
    accelerator = accelerators(comm)
    torch.manual_seed(comm.rank)  # Accelerate's sampler then has another seed on each rank
    loader = prepare(accelerator, accelerator.prepare(DataLoader(range(11), batch_size=2, shuffle=True)))
    if comm.rank == 0:
        next(iter(loader))  # a look at a batch; the order stays that of all ranks
    result["shuffled"] = [sorted(read(accelerator, loader)[1]) for _ in range(2)]

    # our loop inside a loop over Accelerate's, at its last batch: each drops its own repeats; and the other way
    theirs = accelerator.prepare(DataLoader(range(5), batch_size=2))
    inner = prepare(accelerator, DataLoader(range(7), batch_size=1))
    result["outer"] = []
    for batch in theirs:
        result["outer"] += accelerator.gather_for_metrics(batch).tolist()
        result["inner"] = read(accelerator, inner)[1]
    result["theirs inside"] = [
        accelerator.gather_for_metrics(theirs_batch).tolist()
        for _ in prepare(accelerator, [torch.arange(2), torch.arange(2)])
        for theirs_batch in theirs
    ][-1]

    # scalars, and loops that stop or gather nothing
    result["losses"] = [
        accelerator.gather_for_metrics(batch.float().mean()).tolist()  # distlint: ignore[DL206] one example a batch
        for batch in prepare(accelerator, DataLoader(range(6), batch_size=1))
    ]
    three = DataLoader(range(3), batch_size=1)
    for batch in prepare(accelerator, three):
        result["stopped"] = accelerator.gather_for_metrics(batch).tolist()
        assert accelerator.gather(accelerator.gather(batch.float().mean()))[0] == 0.0
        break
    result["only update"] = all_gather_object([batch.tolist() for batch in prepare(accelerator, three)])
    if comm.rank == 0:
        with pytest.raises(InputError, match="no batch"):
            [accelerator.gather(batch) for batch in prepare(accelerator, three)]
    else:
        [accelerator.gather(batch) for batch in prepare(accelerator, three)]

    # what is dealt out is not dealt out again, and a stream that skips batches cannot be
    twice = accelerator.prepare(exact(DataLoader(range(9), batch_size=2)))
    result["exact, and prepared"] = sorted(itertools.chain(*all_gather_object(torch.cat(list(twice)).tolist())))
    with pytest.raises(InputError, match="skips its first 1 batches"):
        prepare(accelerator, skip_first_batches(DataLoader(Rows(range(5))), 1))

    return result


def test_special_cases() -> None:
    first, second = run(2, special_cases, backend="gloo", limit=220)
    assert (first.pop("inner"), second.pop("inner")) == (list(range(7)), list(range(6)))
    assert first.pop("losses") == second.pop("losses") == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert first == second
    assert first == {
        "shuffled": [list(range(11))] * 2,
        "outer": list(range(5)),
        "theirs inside": [4],
        "stopped": [0, 1],
        "exact, and prepared": list(range(9)),
        "only update": [[[0], [2]], [[1]]],
    }


REFUSED: dict[str, Any] = {
    "does not say how 'loss' of all ranks is combined": {},
    "cannot read 'mean': ['loss']": {"mean": ["loss"]},
    "cannot read 'max': 'loss'": {"max": "loss"},
    "cannot read 'tags': 3": {"tags": 3},
    "says how 'lr' is combined, and it is not logged": {"weight": 1, "same": ["lr"]},
    "says how 'loss' is combined, in two ways": {"max": ["loss"], "min": ["loss"]},
}


def test_one_process() -> None:
    """Nothing is gathered, and the last batch of a loop around ours cuts nothing off; arrays are logged by element."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, DataLoader(range(5), batch_size=2))
    for _ in accelerator.prepare(DataLoader(range(3), batch_size=2)):
        assert [accelerator.gather_for_metrics(batch).tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert [accelerator.gather_for_metrics(["a"]) for _ in loader] == [["a"]] * 3

    rows: list[Any] = []

    def write(values: Any, step: int, **_: Any) -> None:
        rows.append((step, values))

    accelerator.trackers = [SimpleNamespace(name="mine", log=write, finish=print)]
    attach_log(accelerator, Log(), every=2)
    for step in range(3):  # two calls of one step belong together
        accelerator.log({"pair": [step, 0.0]}, step, {"distmetrics": {"max": ["pair"]}})
        accelerator.log({"loss": float(step)}, step, {"distmetrics": {"weight": step}})
    for what, how in REFUSED.items():
        with pytest.raises(ConfigurationError) as caught:
            accelerator.log({"loss": 1.0}, 3, {"distmetrics": how})
        assert caught.value.what == f"accelerator.log, with attach_log, {what}"
    accelerator.end_training()
    assert rows == [(1, {"pair/0": 1.0, "pair/1": 0.0, "loss": 1.0}), (2, {"pair/0": 2.0, "pair/1": 0.0, "loss": 2.0})]
