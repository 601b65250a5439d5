"""The testing kit: laws, worlds of ranks, faults, drawn batches, and pytest's plugin."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import re
import time

import pytest
import torch
import torch.distributed as dist
from hypothesis import find, given, settings
from torch import Tensor, nn, tensor
from torch.utils.data import DataLoader, DistributedSampler
from torcheval.metrics import Mean
from torchmetrics import CatMetric, Metric
from torchmetrics.classification import BinaryAUROC, BinaryF1Score, MulticlassAccuracy

import distmetrics as dm
from distmetrics import errors, testing
from distmetrics.errors import DivergedError, InputError, MismatchError, PeerLostError
from distmetrics.testing import check_metric, faults, function, inputs, laws, outcomes, run
from distmetrics.train import Module
from tests.acceptance import ROOT, both_backends, documented, python

ZERO, WIDE = tensor(0.0), tensor(0.0, dtype=torch.float64)
LIST = [(tensor(numbers),) for numbers in ([1.0, 2.5], [0.5, 4.0], [3.0], [0.25])]
PAGE = (ROOT / "docs" / "kit" / "laws.md").read_text()
LAWS = re.findall(r"^## (\d+)\. `(.+)`( .opt-in.)?\n\n\*\*(.+)\.\*\*", PAGE, re.MULTILINE)
SHARED = []
routed, distributed = documented("routed"), pytest.mark.distributed


class Total(Metric):
    """The sum of all numbers: right, and what the broken metrics are made from."""

    full_state_update = False
    zero, none, reduce = WIDE, tensor(0), "sum"

    def __init__(self):
        super().__init__()
        self.add_state("total", self.zero, dist_reduce_fx=self.reduce)
        self.add_state("count", self.none, dist_reduce_fx="sum")
        self.memory = []

    def update(self, x, indices=None):
        self.add(x.to(self.zero.dtype).sum())

    def add(self, amount):
        self.total, self.count = self.total + amount, self.count + 1

    def compute(self):
        return self.total


def changed(**parts):
    """Make a metric that is `Total` but for these attributes."""
    return type("Changed", (Total,), parts)


def adds(amount):
    return lambda self, x: self.add(amount(x))


def summed(batches):
    return dm.all_reduce(sum((x.double().sum() for (x,) in batches), WIDE))


OVER_RANKS = changed(compute=lambda self: self.total / dm.current().world_size)
BROKEN = {
    "single-is-sharded": changed(reduce="max"),
    "ranks-agree": changed(compute=lambda self: self.total + dm.current().rank),
    "empty-rank-is-neutral": OVER_RANKS,
    "empty-batch-is-neutral": changed(update=adds(Tensor.mean)),
    "associative": changed(reduce="mean"),
    "rank-order": CatMetric,
    "sample-order": changed(update=adds(Tensor.mean)),
    "batch-split": changed(compute=lambda self: self.total / self.count),
    "world-size": changed(zero=ZERO),
    "padding-removed": Total,
    "sync-is-idempotent": changed(compute=lambda self: self.memory.append(0) or len(self.memory)),
    "observation": changed(compute=lambda self: self.memory.append(self.total) or self.memory[0]),
    "state-restored": changed(
        update=lambda self, x: Total.update(self, x) or self.memory.append(self.count),
        compute=lambda self: [count.add_(1) for count in self.memory] and self.total,
    ),
    "same-sequence": function(
        lambda b: [dm.barrier() for _ in range(dm.all_reduce(len(b), "max"))]
    ),
    "no-hang": function(lambda mine: summed(mine) if mine else WIDE),
    "reset-is-new": changed(reset=lambda self: None),
    "round-trip": changed(state_dict=lambda *_, **__: {}, load_state_dict=lambda *_, **__: None),
    "dtype-kept": changed(zero=ZERO, reduce=staticmethod(lambda rows: rows.double().sum(0))),
    "low-precision": changed(update=adds(lambda x: x.sum() + 256 - 256)),
    "large-counts": changed(none=ZERO),
    "shift": Total,
    "nan-everywhere": changed(zero=ZERO, reduce=staticmethod(lambda rows: rows.nansum(0))),
    "subgroup": OVER_RANKS,
    "collection": changed(add=lambda self, x: SHARED.append(x), compute=lambda self: len(SHARED)),
    "replica-neutral": changed(update=adds(lambda x: x.sum() + 1e-6 * torch.rand(()).double())),
    "axis-order": changed(compute=lambda self: self.total + dm.current().rank % 2),
    "owner-only": changed(update=adds(lambda x: x.sum() * (1 + (dm.current().rank == 0)))),
}
BATCHES = {
    "world-size": [(tensor(number),) for number in (2.0**24, 1.0, 1.0, 1.0)],
    "padding-removed": [{"x": torch.ones(3), "indices": torch.arange(3)}],
}
LABELS = [(tensor([0, 1, 2]), tensor([0, 1, 1])), (tensor([2]), tensor([2]))]
NAMED = inputs.binary().map(lambda drawn: [{"preds": p, "target": t} for p, t in drawn])
RIGHT = {
    "a class": (BinaryF1Score, inputs.binary()),
    "what makes it, and a list": (lambda: MulticlassAccuracy(num_classes=3), LABELS),
    "named arguments": (BinaryF1Score, NAMED),
    "torcheval": (Mean, inputs.aggregation()),
    "from_function": (lambda: dm.from_function(lambda s: s["n"], {"n": "sum"}), [{"n": 3}] * 2),
    "a plain function": (summed, inputs.aggregation()),
}


def only(*names):
    """The laws of these names, and no other."""
    return functools.reduce(operator.or_, map(laws.find, names), laws.ALL - laws.ALL)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_metric_passes(name):
    testing.assert_distributed(*RIGHT[name], max_examples=1)


@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_named_and_no_other(law):
    """Beside it each metric is judged by a law that it keeps."""
    number, statement = next((row[0], row[3]) for row in LAWS if row[1] == law)
    judged = only(law, "ranks-agree" if law == "same-sequence" else "same-sequence")
    with pytest.raises(errors.LawViolation) as told:
        testing.assert_distributed(BROKEN[law], BATCHES.get(law, LIST), laws=judged, max_examples=1)
    named = re.findall(r"breaks the law (.+)$", str(told.value), re.MULTILINE)
    assert [name.lower() for name in named] == [f"{law} ({number}): {statement.lower()}"]


def test_the_smallest_case_is_reported_with_what_each_rank_got():
    report = check_metric(changed(reduce="max"), LIST, max_examples=2)
    first = report.violations[0]
    numbers = sorted(map(float, re.findall(r"\d+\.\d*", " ".join(first.shards))))
    assert len(numbers) == len(first.shards) == 2, "two ranks with one sample each"
    assert (float(first.expected), float(first.got[0])) == (sum(numbers), numbers[1])
    assert (report.ok, first.law) == (False, laws.find("single-is-sharded"))
    assert "breaks where" in getattr(first.law, "page", first.law.__doc__)
    assert all(text in str(report) for text in (*first.shards, first.expected, *first.got))
    skipped = check_metric(summed, LIST, laws=only("no-hang", "reset-is-new"), max_examples=1)
    assert "no state" in skipped.skipped[laws.find("reset-is-new")]


def test_laws_have_names_numbers_and_sets_and_are_declared_off_with_a_reason():
    assert (len(LAWS), len(laws.ALL), len(laws.DEFAULT)) == (27, 27, 19)
    for number, name, opt_in, _ in LAWS:
        assert laws.find(name) is laws.find(number)
        assert (laws.find(name) in laws.DEFAULT) == (not opt_in)
    assert set(laws.NUMERICS) == set(only("low-precision", "large-counts", "shift"))
    assert set(laws.LAYOUTS) == set(only("replica-neutral", "axis-order", "owner-only"))
    assert set(laws.EXACT) == set(only("world-size"))
    order, why = laws.find("rank-order"), "the value is all numbers in order"
    kept = laws.DEFAULT.off(order, because=why).off(laws.find("sample-order"), because=why)
    report = check_metric(CatMetric, LIST, laws=kept, max_examples=1)
    assert (report.ok, report.off[order]) == (True, why)
    assert why in str(report)
    assert order in kept | order
    with pytest.raises(InputError, match="without a reason"):
        kept.off(order, because=" ")
    with pytest.raises(InputError, match="no law 'no-hangs'"):
        laws.find("no-hangs")


def test_equalities_say_when_values_are_the_same():
    one, near, relative = torch.ones(2), torch.ones(2) * 1.0005, testing.relative
    assert not relative(1e-3).difference(one, near) + relative(1e-4, 1e-3).difference(one, near)
    assert "2 of 2 values differ" in relative(1e-4).difference(one, near)
    assert testing.BITWISE.difference(-ZERO, ZERO)
    assert not testing.EXACT.difference(-ZERO, ZERO)
    assert testing.EXACT.difference(ZERO, WIDE)
    assert not testing.Equality("of any dtype", types=False).difference(ZERO, WIDE)
    make = changed(compute=lambda self: self.total * (1 + 1e-4 * (dm.current().world_size > 1)))
    for judged, ok in ((laws.DEFAULT, False), (laws.DEFAULT.equal(relative(1e-3)), True)):
        assert check_metric(make, LIST, laws=judged, max_examples=1).ok == ok


def drawn(**options):
    seen = []
    batches = inputs.aggregation().map(lambda batches: seen.append(str(batches)) or batches)
    check_metric(summed, batches, laws=only("no-hang"), **options)
    return seen


@pytest.mark.gloo
def test_options_say_what_is_drawn_and_what_is_judged():
    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)
    assert (len(drawn(max_examples=1)), len(drawn(max_examples=3))) == (1, 3)
    sizes, agree = [], {"laws": only("ranks-agree"), "max_examples": 1}
    seen = function(lambda _: sizes.append(dm.current().world_size))
    assert check_metric(seen, LIST, world_sizes=[7], **agree).ok
    assert 7 in sizes
    for sync in ("distmetrics", "own"):
        hang = {"laws": only("no-hang"), "sync": sync, "max_examples": 2}
        assert check_metric(BinaryAUROC, inputs.binary(), **hang).ok == (sync == "distmetrics")
    found = check_metric(BROKEN["owner-only"], LIST, layouts=[{"dp": 2, "pp": 2}], **agree)
    assert "owner-only" in [str(each.law) for each in found.violations]
    pids, two = function(lambda _: os.getpid()), {"world_sizes": [2], **agree}
    assert check_metric(pids, LIST[:2], **two).ok
    assert not check_metric(pids, LIST[:2], backend="gloo", **two).ok


def facts(comm, more):
    return comm.rank + more, os.getpid(), dm.current() is comm


@both_backends
def test_run_returns_each_rank_s_result_in_rank_order(backend):
    ranks, pids, in_force = zip(*run(3, facts, 10, backend=backend), strict=True)
    assert (ranks, in_force) == ((10, 11, 12), (True,) * 3)
    assert len({os.getpid(), *pids}) == (1 if backend == "threads" else 4)
    counted = run(4, lambda _: dm.all_reduce(2.0), backend=backend, layout={"dp": 2, "tp": 2})
    assert [float(total) for total in counted] == [4.0] * 4
    if backend == "gloo":
        seeds = find(documented("hash_seeds")(2), lambda seeds: seeds[0] != seeds[1])
        hashes = run(2, lambda _: hash("text"), backend=backend, hash_seeds=seeds)
        assert hashes[0] != hashes[1]


def one_fails(comm):
    if comm.rank == 1:
        raise ValueError("no such file")
    return dm.barrier() or "done"


def one_stays(comm, folder):
    (folder / str(os.getpid())).touch()
    time.sleep(100 * comm.rank)


@both_backends
def test_the_first_error_is_raised_and_no_process_outlives_its_world(backend, tmp_path):
    ended = outcomes(3, one_fails, backend=backend)
    assert [each.rank for each in ended] == [0, 1, 2]
    assert [type(each.error) for each in ended] == [PeerLostError, ValueError, PeerLostError]
    for text in ("rank 1 failed and will never answer", "ValueError: no such file"):
        assert text in str(ended[0].error)
    assert outcomes(1, one_fails, backend=backend) == [testing.Outcome(0, "done")]
    with pytest.raises(ValueError, match="no such file") as told:
        run(3, one_fails, backend=backend)
    assert any("PeerLostError" in note for note in told.value.__notes__)
    if backend == "gloo":
        ended = outcomes(2, one_stays, tmp_path, backend=backend, limit=6)
        assert "rank 1 was still busy after 6 s" in str(ended[1].error)
        assert len(list(tmp_path.iterdir())) == 2
        for each in tmp_path.iterdir():
            with pytest.raises(ProcessLookupError):
                os.kill(int(each.name), 0)


def in_a_circle(comm):
    groups = [dist.new_group([first, (first + 1) % 3]) for first in range(3)]
    dist.all_reduce(ZERO.clone(), group=groups[comm.rank])


WRONG = [
    (lambda comm: comm.rank and dm.barrier(), DivergedError, "rank 0 has returned"),
    (in_a_circle, DivergedError, r"ranks 0-2 .*\[1?\] .*test_kit.py:\d+ in in_a_circle"),
    (lambda comm: dist.all_reduce(torch.zeros(1 + comm.rank)), MismatchError, r"float32\[2\]"),
    (lambda comm: dist.all_reduce(WIDE if comm.rank else ZERO), MismatchError, "rank 0 .*float32"),
    (lambda comm: dist.all_reduce(torch.zeros(2, 3).t()), InputError, "contiguous"),
]


@pytest.mark.parametrize(("program", "kind", "text"), WRONG)
def test_threads_decide_a_deadlock_and_are_as_strict_as_gloo(program, kind, text):
    with routed():
        ended = outcomes(3, program)
    for each in ended[1:]:
        assert isinstance(each.error, kind)
        assert re.search(text, str(each.error))


def own_sync(comm):
    metric = BinaryF1Score()
    metric.update(tensor([0.9, 0.2]), tensor([1, comm.rank]))
    return round(float(metric.compute()), 6), dist.get_world_size()


def test_torch_distributed_reaches_the_threads_inside_routed():
    before = dist.all_gather
    with routed():
        assert run(2, own_sync) == [(0.8, 2)] * 2, "two hits and one miss: 4 / 5"
        assert not dist.is_initialized(), "this thread is no rank"
        ended = outcomes(2, lambda _: dist.send(ZERO, dst=0))
    assert [type(each.error) for each in ended] == [errors.ConfigurationError] * 2
    assert dist.all_gather is before


def sums(_):
    return [float(dm.all_reduce(tensor(10.0**place))) for place in range(3)]


STRIKES = [
    (faults.kill(rank=1, at=2), PeerLostError),
    (faults.raises(rank=1, at=2, error=OSError("cable")), PeerLostError),
    (faults.skip(rank=1, at=2), DivergedError),
    (faults.swap(rank=1, at=1), dm.DistmetricsError),
    (faults.reshape(rank=1, at=2, shape=(3,)), dm.DistmetricsError),
    (faults.retype(rank=1, at="all_reduce", dtype=torch.float64), dm.DistmetricsError),
    (faults.stop(rank=1, at=2, seconds=0.2), None),
    (faults.delay(rank=1, at=2, seconds=0.1), None),
]


@both_backends
@pytest.mark.parametrize(("fault", "kind"), STRIKES, ids=str)
def test_a_fault_ends_in_errors_and_never_in_a_wrong_value(fault, kind, backend):
    struck = outcomes(3, sums, backend=backend, faults=[fault], limit=30)
    for survivor in (struck[0], struck[2]):
        assert isinstance(survivor.error, kind or type(None))
        assert survivor.value == (None if kind else [3.0, 30.0, 300.0])
        assert kind in (None, dm.DistmetricsError) or survivor.error.peers == (1,)
    assert fault.kind != "kill" or "rank 1 was killed" in str(struck[1].error)
    assert fault.kind != "raises" or str(struck[1].error) == "cable"


def synced(_):
    metric = CatMetric()
    metric.update(torch.ones(20_000))
    return dm.sync_and_compute(metric)


def killed_inside(comm):
    with faults.injected(faults.kill(1, 1), comm) as inside:
        assert isinstance(inside, faults.FaultyCommunicator)
        with contextlib.suppress(Exception):  # a kill is none
            dm.barrier()
            return dm.current() is not inside
        return "told"


@pytest.mark.parametrize("place", ["update", "compute", "all_gather", 1, 2])
def test_a_fault_strikes_where_it_is_said_to_and_must_strike(place):
    ended = outcomes(2, synced, faults=[faults.raises(1, place, KeyError(place))])
    assert ended[1].error.args == (place,)
    told, killed = outcomes(2, killed_inside)
    assert (told.value, type(killed.error)) == ("told", PeerLostError)
    assert not issubclass(faults.RankKilled, Exception)
    with pytest.raises(errors.ConfigurationError, match="never reached"):
        run(2, sums, faults=[faults.Fault("kill", 1, 99)])


def sentences(candidates, references):
    assert {*map(len, references)} <= {2, 3}
    return {*candidates, *itertools.chain(*references)} <= {"a", "b", "a a", "a b", "b a", "b b"}


def pictures(preds, target):
    assert all("scores" in one for one in preds)
    return all(
        len(one["labels"]) == 2 and one["labels"].max() <= 3 and one["boxes"].shape == (2, 4)
        for one in preds + target
    )


TEXT = {"references": (2, 3), "words": "ab", "min_words": 1, "max_words": 2}
DRAWN = [  # of each argument the shape of a sample, the least and the largest number
    ("binary", {"ties": False, "dtype": torch.float64}, [((), 0, 1), ((), 0, 1)]),
    ("binary", {"preds": "logits"}, [((), -4, 4), ((), 0, 1)]),
    ("multiclass", {"num_classes": 3}, [((3,), 0, 1), ((), 0, 2)]),
    ("multiclass", {"preds": "labels"}, [((), 0, 4), ((), 0, 4)]),
    ("multilabel", {"num_labels": 2, "preds": "labels"}, [((2,), 0, 1), ((2,), 0, 1)]),
    ("multilabel", {"ties": False}, [((3,), 0, 1), ((3,), 0, 1)]),
    ("regression", {"num_outputs": 2, "low": 0.5, "high": 1.0}, [((2,), 0.5, 1)] * 2),
    ("aggregation", {"weights": True, "low": -1.0, "high": 0.0}, [((), -1, 0), ((), 0, 1)]),
    ("retrieval", {"num_queries": 2, "graded": True}, [((), 0, 1), ((), 0, 3), ((), 0, 1)]),
    ("clustering", {"num_clusters": 2}, [((), 0, 1), ((), 0, 1)]),
    ("clustering", {"num_features": 2}, [((2,), -2, 2), ((), 0, 2)]),
    ("segmentation", {"num_classes": 2, "size": 8}, [((2, 8, 8), 0, 1)] * 2),
    ("segmentation", {"one_hot": False}, [((4, 4), 0, 2)] * 2),
    ("image", {"channels": 3, "size": 8}, [((3, 8, 8), 0, 1)] * 2),
    ("text", TEXT, sentences),
    ("text", {"references": None}, lambda texts, answers: all(map(str.split, texts + answers))),
    ("detection", {"num_labels": 4, "min_boxes": 2, "max_boxes": 2}, pictures),
]


@pytest.mark.parametrize(("name", "options", "wanted"), DRAWN)
def test_inputs_draw_what_was_asked_for(name, options, wanted):
    few = {"min_batches": 2, "max_batches": 3, "min_samples": 2, "max_samples": 4}

    @settings(max_examples=15)
    @given(getattr(inputs, name)(**options, **few))
    def check(batches):
        assert 2 <= len(batches) <= 3
        for batch in batches:
            assert {*map(len, batch)} in ({2}, {3}, {4})
            assert not callable(wanted) or wanted(*batch)
            for x, bounds in zip(batch, [] if callable(wanted) else wanted, strict=False):
                assert (x.shape[1:], x.min() >= bounds[1], x.max() <= bounds[2]) == (
                    bounds[0],
                    1,
                    1,
                )
                assert x.dtype in (options.get("dtype", torch.float32), torch.int64)
            assert options.get("ties", True) or len(batch[0].unique()) == batch[0].numel()

    check()


def arguments(batch):
    """What update is called with, of a batch that the kit has made."""
    return getattr(batch, "kwargs", None) or getattr(batch, "args", batch)


def samples(shards):
    return sorted(x for shard in shards for batch in shard for x in arguments(batch)[0].tolist())


def test_what_is_drawn_shrinks_and_every_sample_is_dealt_to_one_rank():
    smallest = find(inputs.binary(preds="labels"), lambda drawn: len(drawn) == 2)
    assert smallest == [(tensor([0]), tensor([0]))] * 2
    assert find(inputs.aggregation(nan=True), lambda drawn: drawn[0][0].isnan().any())
    assert find(
        inputs.retrieval(ties=True), lambda drawn: len(drawn[0][0]) > drawn[0][0].unique().numel()
    )
    assert [*map(list, documented("deal")("abc", [0, 2, 0], 3))] == [["a", "c"], [], ["b"]]
    tried, every = documented("shapes")(LIST, [2, 3]).values(), samples([LIST])
    cut = find(documented("partitions")(LIST, [4]), lambda shards: sum(map(len, shards)) > 5)
    assert all(samples(shards) == every for shards in (*tried, cut))
    assert {len(shards) for shards in tried} >= {1, 2, 3}
    assert any(() in shards for shards in tried), "a rank without data"
    whole = {"x": torch.arange(5.0), "indices": torch.arange(5)}
    for rank, shard in enumerate(documented("padded")([whole], 2)):
        theirs = DistributedSampler(range(5), num_replicas=2, rank=rank, shuffle=False)
        assert torch.cat([arguments(batch)["indices"] for batch in shard]).tolist() == [*theirs]
    (low,) = documented("low_precision")([(torch.ones(2), tensor([1]))])
    assert [x.dtype for x in arguments(low)] == [torch.bfloat16, torch.int64]


@pytest.mark.gloo
@distributed(world_size=[2, 3], backend="gloo", faults=[faults.kill(1, at="barrier")], timeout=50)
def test_a_marked_test_runs_as_every_rank(comm, world, ranks, tmp_path):
    assert (comm.world_size, comm.rank in ranks) == (world.size, True) == (len(ranks), True)
    found = dm.all_gather_object((os.getpid(), str(tmp_path)))
    assert len(set(found)) == comm.world_size
    with pytest.raises(PeerLostError):
        dm.barrier()


INNER = """
import os, time, pytest
import distmetrics as dm
import torch
distributed, here = pytest.mark.distributed(timeout=100), os.getpid()
@distributed(world_size=3)
def test_alike(comm):
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    assert [int(total), 5] == [3, 4 if comm.rank else 5]
@distributed
def test_let_down(comm):
    if comm.rank:
        raise ValueError("no such file")
    dm.barrier()
@distributed
def test_deadlock(comm):
    comm.rank or dm.barrier()
@pytest.mark.distributed
@pytest.mark.parametrize("how", ["option", pytest.param("mark", marks=distributed(timeout=1))])
def test_busy(comm, how):
    while comm.rank:
        time.sleep(0.01)
    dm.barrier()
def test_world(world, ranks):
    assert world.run(lambda comm: comm.rank) == list(ranks) == [0, 1]
    assert [each.value == here for each in world.outcomes(lambda _: os.getpid())] == [THREADS] * 2
"""
TOLD = r"""> +assert \[int\(total\), 5\] == \[3, 4 if comm.rank else 5\]
\^ ranks 1-2 of 3, on threads
(?s:PeerLostError: rank 1 failed.*let down by.*> +raise ValueError.*\^ rank 1 of 2)
DivergedError: rank 1 has returned
rank 1 was still busy after 1 s
rank 1 was still busy after 2 s
test_inner.py", line \d+,? in test_busy
5 failed, 1 passed""".splitlines()


PLUGIN = [
    ("threads", "--distmetrics-timeout=2", TOLD),
    ("gloo", "-kalike or world", [r"\^ ranks 1-2 of 3, on gloo", "1 failed, 1 passed"]),
]


@pytest.mark.gloo
@pytest.mark.parametrize(("backend", "option", "told"), PLUGIN, ids=["threads", "gloo"])
def test_the_plugin_shows_which_ranks_failed_and_takes_options(backend, option, told, tmp_path):
    code = INNER.replace("THREADS", str(backend == "threads"))
    (tmp_path / "test_inner.py").write_text(code)
    ended = python(
        "-m", "pytest", f"--distmetrics-backend={backend}", option, cwd=tmp_path, timeout=100
    )
    assert ended.stdout.count("At index 1 diff: 5 != 4") == 1, "ranks that fail alike: once"
    for text in told:
        assert re.search(text, ended.stdout), ended.stdout


DATA = DataLoader(torch.arange(6.0)[:, None], 6), DataLoader(torch.arange(5.0)[:, None], 2)


class Line(Module):
    made, power = [], 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.made.append(self.layer.weight.item())

    def training_step(self, batch, batch_idx):
        return (self.layer(batch) - batch).square().mean() * self.trainer.world_size**self.power

    def validation_step(self, batch, batch_idx):
        self.log("loss", (self.layer(batch) - batch).abs().mean())
        self.log("size", float(self.trainer.world_size**self.power))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Wrong(Line):
    power = 1


class Hastier(Line):
    """Each that is made takes larger steps than the one before."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01 * len(self.made))


@pytest.mark.gloo
def test_a_module_is_compared_with_the_single_process():
    check, alone = testing.assert_same_as_single, {"strategies": ["single"], "world_sizes": [1, 1]}
    with pytest.raises(AssertionError, match="strategy='ddp', world size 3: size: 3 ") as told:
        check(Wrong, DATA, strategies=["ddp"], world_sizes=[3])
    assert "world size 3: weight layer.weight: " in str(told.value)
    check(Line, DATA, max_epochs=2)
    with pytest.raises(InputError, match="4 ranks can't share"):
        check(Line, DATA, world_sizes=[4])
    Line.made.clear()
    for seed in (1, 1, 2):
        check(Line, DATA[0], strategies=[], seed=seed)
    assert Line.made[0] == Line.made[1] != Line.made[2]
    check(Hastier, DATA, rtol=100.0, **alone)
    check(Hastier, DATA[0], atol=100.0, **alone)
    with pytest.raises(AssertionError, match=r"(?s)world size 1: loss: .*world size 1: weight"):
        check(Hastier, DATA, **alone)
