"""Metrics synced over ranks: the value of one process, and local state as before."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import traceback
import warnings
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics as tm
from sklearn import metrics as sk
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchmetrics import classification as tc

import distmetrics as dm
from distmetrics import explain, sync_and_compute, synced
from distmetrics.testing import run
from tests.acceptance import ROOT, documented, python

SCORES = torch.rand(60, 4, generator=torch.Generator().manual_seed(1)).softmax(1)
LABELS = torch.randint(4, (60,), generator=torch.Generator().manual_seed(2))
ONEHOT, CHOSEN, ROW = nn.functional.one_hot(LABELS), SCORES.argmax(1), SCORES[0]


def on_ranks(*sizes: int, backends: Any = ("gloo",)) -> Any:
    """Run a test's body on every rank; what it returns is the same on all of them."""

    def decorate(body: Any) -> Any:
        def test() -> None:
            for size, backend in itertools.product(sizes, backends):
                got = run(size, body_of, body.__name__, backend=backend)
                assert got == [got[0]] * size

        test.body = body
        return pytest.mark.gloo(test)

    return decorate


def exactly(value: Any) -> str:
    """Return a text of a value that tells its numbers apart."""
    torch.set_printoptions(precision=10, threshold=10**6)
    try:
        return repr(value)
    finally:
        torch.set_printoptions(profile="default")


def body_of(comm: Any, test: str) -> Any:
    try:
        return exactly(globals()[test].body(comm))
    except (AssertionError, pytest.fail.Exception) as error:
        place = traceback.extract_tb(error.__traceback__)[1]
        raise AssertionError(f"line {place.lineno}: {place.line}") from error


class Kept(tm.Metric):
    """Keeps anything, and an attribute that is no state."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(sync_on_compute=False, dist_sync_fn=pytest.fail)
        self.add_state("items", [], dist_reduce_fx=None)
        self.add_state("count", torch.tensor(1), dist_reduce_fx=lambda rows: rows.prod(0))
        self.__dict__ |= attributes

    def update(self, item: Any, **attributes: Any) -> None:
        self.items.append(item)
        self.count = self.count * 2
        self.__dict__ |= attributes

    def compute(self) -> Any:
        items = [*self.items]
        self.items.clear()  # a metric may change its state while it computes
        return {"items": items, "last": vars(self).get("last"), "count": self.count}


class Moved(TorchDispatchMode):
    """Counts this rank's collectives, and their bytes."""

    calls = nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in str(func):
            self.calls += 1
            self.nbytes += sum(x.nbytes for x in tree_leaves(args) if isinstance(x, Tensor))
        return func(*args, **(kwargs or {}))


def held(*metrics: Any) -> str:
    """Return all that metrics hold on this rank, bit for bit."""
    parts = [list(each.modules()) if isinstance(each, nn.Module) else [each] for each in metrics]
    return exactly([part.__getstate__() for each in parts for part in each])


def fed(metric: Any, *args: Any, **kwargs: Any) -> Any:
    metric.update(*args, **kwargs)
    return metric


def confusion(classes: int) -> Any:
    return fed(tc.MulticlassConfusionMatrix(classes), LABELS, LABELS)


def cases() -> Any:
    """Yield metrics, what they are updated with, and their values by scikit-learn or by hand."""
    from torcheval import metrics as te

    labelled, onehot = (SCORES, LABELS), (SCORES, ONEHOT.float())
    values = [each(LABELS, CHOSEN, average="macro") for each in (sk.f1_score, sk.recall_score)]
    values.append(sk.roc_auc_score(ONEHOT, SCORES))
    for groups in (True, False):
        made = [tc.MulticlassF1Score(4), tc.MulticlassRecall(4), tc.MulticlassAUROC(4)]
        yield tm.MetricCollection(made, compute_groups=groups), labelled, values
    moments = [np.corrcoef(SCORES[:, i], ONEHOT[:, i])[0, 1] for i in range(4)]
    yield tm.PearsonCorrCoef(4), onehot, moments
    classwise = tm.wrappers.ClasswiseWrapper(tc.MulticlassRecall(4, average=None))
    yield classwise, labelled, sk.recall_score(LABELS, CHOSEN, average=None)
    squares = sk.mean_squared_error(ONEHOT, SCORES, multioutput="raw_values")
    yield tm.wrappers.MultioutputWrapper(tm.MeanSquaredError(), 4), onehot, squares
    errors = squares.mean() + 2 * sk.mean_absolute_error(ONEHOT, SCORES)
    yield tm.MeanSquaredError() + 2 * tm.MeanAbsoluteError(), onehot, [errors]
    for made, value in (tm.MaxMetric, SCORES.max()), (tm.MinMetric, SCORES.min()):
        yield made(), (SCORES,), [value]
    yield Kept(), (LABELS,), [*LABELS, 2**8]  # 8 batches
    yield te.MulticlassF1Score(), labelled, [sk.accuracy_score(LABELS, CHOSEN)]
    first = SCORES[:, 0], (LABELS == 0).long()
    yield te.BinaryAUROC(), first, [sk.roc_auc_score(first[1], first[0])]
    window = te.WindowedMeanSquaredError(max_num_updates=6, enable_lifetime=False)
    yield window, first, [sk.mean_squared_error(*first)]  # the windows of all ranks: 8 batches
    yield te.Cat(), (SCORES,), SCORES.flatten()


@on_ranks(2, 3)
def test_values_are_those_of_one_process(comm: Any) -> Any:
    metrics, inputs, expected = zip(*cases(), strict=True)
    cuts = {2: [0, 41, 60], 3: [0, 0, 10, 60]}[comm.world_size]  # 8 batches; rank 0 of 3 has none
    for start in range(cuts[comm.rank], cuts[comm.rank + 1], 9):
        rows = slice(start, min(start + 9, cuts[comm.rank + 1]))
        for metric, batch in zip(metrics, inputs, strict=True):
            metric.update(*[x[rows] for x in batch])
    got, before = sync_and_compute(metrics), held(*metrics)
    with Moved() as moved:
        assert exactly(sync_and_compute(metrics)) == exactly(got)
    assert moved.calls <= 2
    assert held(*metrics) == before
    for value, numbers in zip(got, expected, strict=True):
        leaves = [x.flatten() for x in tree_leaves(value) if isinstance(x, Tensor)]
        assert torch.cat(leaves).tolist() == pytest.approx([float(x) for x in numbers], abs=1e-4)
    return got


@on_ranks(3)
def test_a_function_reads_the_values_of_all_ranks(comm: Any) -> None:
    kinds: Any = {"hits": "sum", "loss": "mean", "high": "max", "low": "min", "seen": "cat"}
    metric = dm.from_function(lambda values: [x.tolist() for x in values.values()], reduce=kinds)
    assert repr(sync_and_compute(metric)) == "[0, nan, -inf, inf, []]"
    for step in range(comm.rank):  # rank 0 has no data
        x = torch.arange(2.0) + 10 * comm.rank + step
        metric.update(hits=comm.rank, loss=x.mean(), weight=1 + step, high=x, low=x.min(), seen=x)
    loss, seen = (10.5 * 1 + 20.5 * 1 + 21.5 * 2) / 4, [10.0, 11.0, 20.0, 21.0, 21.0, 22.0]
    assert sync_and_compute(metric) == [5, loss, [21.0, 22.0], 10.0, seen]
    assert metric.compute()[0] == comm.rank**2  # local again
    with pytest.raises(dm.InputError, match="weight"):
        metric.update(loss=1.0)
    with pytest.raises(dm.InputError, match="avg"):
        dm.from_function(len, reduce={"x": "avg"})


@on_ranks(2)
def test_the_result_has_the_form_of_the_input(comm: Any) -> None:
    total, one = fed(tm.SumMetric(), 1.0 + comm.rank), fed(tm.SumMetric(), comm.rank)
    module = nn.ModuleDict({"total": total, "inner": nn.Sequential(one)})
    assert sync_and_compute((total, one)) == [3.0, 1.0]
    assert sync_and_compute(nn.Sequential(module)) == {"0.total": 3.0, "0.inner.0": 1.0}
    mixed = sync_and_compute({"b": total, "a": [one, total], "note": "text"})
    assert mixed == {"b": 3.0, "a": [1.0, 3.0], "note": "text"}
    pairs = [("a", total), ("b", one)][:: 1 - 2 * comm.rank]  # in another order
    assert sync_and_compute(dict(pairs)) == {"a": 3.0, "b": 1.0}
    empty = sync_and_compute([tm.SumMetric(), tm.MeanMetric(), tm.MaxMetric()])  # on every rank
    assert repr(empty) == "[tensor(0.), tensor(nan), tensor(-inf)]"


@on_ranks(2)
def test_local_state_is_back_if_computing_raises(comm: Any) -> float:
    from torcheval import metrics as te

    kinds = ZeroDivisionError, KeyboardInterrupt
    in_turn = itertools.cycle(kinds)

    def fail(state: Any = None) -> Any:
        raise next(in_turn)("no positives")

    metrics = [fed(Kept(), ROW), fed(te.Sum(), ROW), dm.from_function(fail, {"x": "sum"})]
    metrics[0].compute = metrics[1].compute = fail
    metrics[2].update(x=1)
    total = fed(tm.SumMetric(), 1.0 + comm.rank)
    worlds = [comm, comm, dm.SingleCommunicator()]
    for metric, over in itertools.product(metrics, worlds):
        before = held(total, metric)
        with pytest.raises(kinds, match="no positives"):
            sync_and_compute([total, metric], comm=over)
        with pytest.raises(kinds, match="no positives"), synced([total, metric], comm=over):
            fail(total.update(5.0))
        assert held(total, metric) == before
    return float(sync_and_compute(total))  # the ranks go on


@on_ranks(1, 2)
def test_a_block_holds_the_state_of_all_ranks_and_no_longer(comm: Any) -> None:
    metric = fed(tm.SumMetric(), 1.0 + comm.rank)
    one = fed(dm.from_function(len, {"hits": "sum"}), hits=1)
    with synced([metric, one], comm=comm, name="val", allow_pickle=False) as plan:
        assert metric.compute() == {1: 1.0, 2: 3.0}[comm.world_size]
        metric.update(10.0)  # is lost
        with pytest.raises(dm.StateError, match="lost"):
            one.update(hits=1)
        with pytest.raises(dm.StateError, match="holds the state of all ranks already"):
            sync_and_compute(metric)
    assert "2 states, 2 ranks" in plan.describe() if comm.world_size == 2 else plan is None
    with pytest.raises(ZeroDivisionError), synced(metric):
        _ = 1 / (metric.reset() or 0)  # the error undoes it
    assert metric.sum_value == 1.0 + comm.rank
    with synced(metric):
        metric.reset()
    metric.update(7.0)
    assert sync_and_compute(metric) == 7.0 * comm.world_size


@on_ranks(3)
def test_ranks_that_differ_are_all_told_before_data_moves(comm: Any) -> Any:
    told = []
    for kind, odd, usual in [  # what rank 1 syncs, what the others do
        (dm.MismatchError, tm.MeanMetric, tm.SumMetric),
        (dm.MismatchError, lambda: confusion(1001), lambda: confusion(1000)),
        (dm.MismatchError, lambda: tc.BinaryAUROC(5), lambda: tc.BinaryAUROC(6)),  # without data
        (dm.MismatchError, lambda: {"f1": tm.SumMetric()}, lambda: {"loss": tm.SumMetric()}),
        (dm.MismatchError, lambda: [tm.SumMetric()], lambda: [tm.SumMetric(), tm.SumMetric()]),
        (dm.StateError, lambda: fed(Kept(), Fraction(1, 2)), lambda: fed(Kept(), 1)),
        (dm.StateError, lambda: object(), lambda: tm.SumMetric()),
    ]:
        metrics = odd() if comm.rank == 1 else usual()
        with Moved() as moved, pytest.raises(kind) as caught:
            sync_and_compute(metrics, comm=comm, name="val")
        assert moved.nbytes < 200_000  # of 8 MB
        assert re.search(r'sync of metrics "val".* rank 1', str(caught.value), re.DOTALL)
        told.append((str(caught.value), caught.value.peers))
    assert sync_and_compute(confusion(4)).sum() == 180  # the ranks go on
    return told


@on_ranks(2)
def test_states_travel_as_data_and_nothing_is_unpickled_unless_all_say_so(comm: Any) -> None:
    seen: list[str] = []
    sys.addaudithook(lambda event, _: seen.append(event) if "find_class" in event else None)
    data = ["a", {1, 2}, b"\xff", {"b": [1.5, None]}, torch.int8, torch.arange(3), np.arange(2)]
    assert exactly(sync_and_compute(fed(Kept(), data))["items"]) == exactly([data, data])
    assert seen == []
    metric = fed(Kept(), {"own": Fraction(1, 2)})
    assert sync_and_compute(metric, allow_pickle=True)["items"] == [{"own": Fraction(1, 2)}] * 2
    with synced(metric, allow_pickle=True):
        assert len(metric.items) == 2
    assert seen
    with pytest.raises(dm.StateError, match="allow_pickle=True"):
        sync_and_compute(metric)
    with pytest.raises(dm.MismatchError, match="allow_pickle=True"):
        sync_and_compute(fed(Kept(), ROW), allow_pickle=comm.rank == 0)


@on_ranks(2)
def test_reduced_states_take_one_collective_and_long_lists_one_more(comm: Any) -> None:
    kinds = [tm.SumMetric, tm.MeanMetric, tm.MaxMetric, tm.MinMetric]
    for count, metrics in [
        (1, [fed(kind(), comm.rank) for kind in kinds * 10]),
        (1, [fed(Kept(), ROW), confusion(10)]),  # short lists
        (2, [fed(Kept(), torch.rand(9000)) for _ in range(3)]),
        (2, [confusion(100), confusion(90)]),  # larger than fits
        (3, [confusion(100), fed(tm.SumMetric(), comm.rank)]),  # of two dtypes
    ]:
        with Moved() as moved, synced(metrics) as plan:
            assert moved.calls == count
        assert f" 2 ranks, {count} collective" in plan.describe()
        assert f"over 2 ranks: {count} collective" in str(explain(metrics))


def test_explain_tells_the_cost_in_a_world_of_any_size() -> None:
    matrix, small, mesh = confusion(1000), confusion(50), {"dp": 4, "x": 2}
    sizes = {8: "13.6 MiB 53.4 MiB", 1024: "15.2 MiB 7.6 GiB", 16_384: "15.3 MiB 122.1 GiB"}
    for ranks, (ours, theirs) in {k: re.findall(r"\S+ \wiB", v) for k, v in sizes.items()}.items():
        lines = str(explain(matrix, world_size=ranks)).splitlines()
        assert f"over {ranks} ranks: 2 collectives, {ours} received" in lines[0]
        assert f"3 collectives, {theirs} received" in lines[1]
    for ranks, size in (8, "1 collective, 224.0 KiB"), (9, "2 collectives, "):  # of 20 KB
        assert f"{ranks} ranks: {size}" in str(explain(small, world_size=ranks))
    assert "grows with the data" in str(explain(tc.BinaryAUROC()))
    assert "over 8 ranks, 4 shards" in str(explain(matrix, layout=mesh, dp="shard", x="same"))
    with pytest.raises(dm.InputError):
        explain(matrix, world_size=1)
    with pytest.raises(dm.StateError):
        explain([1, 2])


@on_ranks(3)
def test_metrics_are_synced_in_their_own_process_group(comm: Any) -> None:
    pair, every = (torch.distributed.new_group(ranks) for ranks in ([0, 1], [0, 1, 2]))
    groups, value = (None, pair, every), 10.0**comm.rank
    plain, own, all_own = (fed(tm.SumMetric(process_group=group), value) for group in groups)
    assert [sync_and_compute(plain), sync_and_compute(all_own)] == [111.0, 111.0]
    assert sync_and_compute(own, comm=comm) == 111.0
    with pytest.raises(dm.StateError, match="different process groups"):
        sync_and_compute([all_own, plain])
    if comm.rank == 2:
        with pytest.raises(dm.ConfigurationError, match="loss was made for a process group"):
            sync_and_compute({"loss": own})
    else:
        assert sync_and_compute(own) == 11.0
        with dm.use(dm.GroupCommunicator(pair)):
            assert sync_and_compute(plain) == 11.0


@on_ranks(3, backends=("threads", "gloo"))
def test_a_sync_in_the_background_frees_the_metrics_and_raises_by_its_result(comm: Any) -> str:
    metric, own = fed(tm.SumMetric(), 1.0), fed(Kept(), Fraction(1, 2))
    handles = []
    for _ in range(6):
        handles.append(dm.sync_async(metric, comm=comm))
        metric.update(comm.rank)
    metric.reset()
    assert [float(each.result()) for each in reversed(handles)] == [18.0, 15.0, 12.0, 9.0, 6.0, 3.0]
    assert len(dm.sync_async(own, allow_pickle=True).result()["items"]) == 3
    failed = dm.sync_async(confusion(4 + comm.rank % 2), name="val")
    with pytest.raises(dm.MismatchError, match='"val"') as caught:
        failed.result()
    return str(caught.value)


@on_ranks(3)
def test_a_rank_without_data_computes_with_attributes_of_the_others(comm: Any) -> None:
    tree, rows, large = {"a": [1, ("b", torch.int8)]}, np.arange(3), torch.ones(20_000)
    for values, expected, calls in [  # set by each rank's update, None without; what it gets
        ([2, 2, None], [2, 2, 2], 2),
        ([None, tree, None], [tree] * 3, 2),
        ([rows, None, None], [rows] * 3, 2),
        ([1, 2, 3], [1, 2, 3], 1),  # all have data
        ([print, None, None], [print, len, len], 1),  # its own, of what cannot be sent
        ([1, 2, None], [], 0),
        ([large, None, None], [], 0),
        ([print, None, None], [], 0),
    ]:
        metric = Kept(last=len) if calls == 1 else Kept()
        if (mine := values[comm.rank]) is not None:
            metric.update(SCORES[comm.rank], last=mine)
        before = held(metric)
        refused = pytest.raises(dm.StateError, match=r"m\.last is no state")
        with Moved() as moved, contextlib.nullcontext() if expected else refused:
            last = sync_and_compute({"m": metric})["m"]["last"]
            assert (exactly(last), moved.calls) == (exactly(expected[comm.rank]), calls)
        assert held(metric) == before


@on_ranks(3)
def test_ranks_that_hold_the_same_data_are_warned_of_once(comm: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", dm.RepeatedSamplesWarning)
        for _ in range(3):
            sync_and_compute(fed(Kept(), SCORES))
        sync_and_compute(fed(Kept(), SCORES + comm.rank))
        sync_and_compute(fed(tm.SumMetric(), 1.0))  # may be equal by chance
    kinds = [str(each.message) for each in caught if each.category is dm.RepeatedSamplesWarning]
    texts = itertools.chain(*dm.all_gather_object(kinds))  # of all ranks
    told = "ranks 0-2 hold the same data: it is counted 3 times"
    assert [told in text for text in texts] == [True]


def test_the_programs_of_the_page_work_and_entry_points_are_found(tmp_path: Path) -> None:
    page = ROOT.joinpath("docs", "adapters.md").read_text()
    text = "".join(re.findall(r"(?<!-->\n)```python\n(.*?)```", page, re.DOTALL))
    theirs = re.sub(r"^(assert run|register_adapter)\(.*\n", "", text, flags=re.MULTILINE)
    theirs += "\ninstance = VotesAdapter()\n"
    main = "import sys, theirs as t\nprint(t.run(3, t.vote), 'torcheval' in sys.modules)\n"
    main += "t.run(2, lambda comm: t.sync_and_compute(t.Votes(top=comm.rank)))"
    for name, program in {"page.py": text, "theirs.py": theirs, "main.py": main}.items():
        tmp_path.joinpath(name).write_text(program)
    info = tmp_path / "their_metrics-1.2.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Name: their-metrics\nVersion: 1.2\n")
    right = r"\('dog', 3\)\]\] False.*MismatchError: ranks disagree .* rank 1 sends Votes"
    broken = "StateError: .*their-metrics 1.2"
    for name, told in {"VotesAdapter": right, "instance": right, "Missing": broken}.items():
        points = f"[distmetrics.adapters]\ntheirs = theirs:{name}\n"
        info.joinpath("entry_points.txt").write_text(points)
        done = python("main.py", cwd=tmp_path)
        assert re.search(told, done.stdout + done.stderr, re.DOTALL)
    assert text.count("\nassert run(") >= 4
    assert python("page.py", cwd=tmp_path).returncode == 0  # its adapters are registered


def tally(rank: int, count: int = 1, width: int = 2) -> Any:
    """Return a metric of a third party, which keeps its states in a mapping of its own."""
    x = torch.ones(width) * rank
    kept = {"sum": x, "mean": x, "max": x, "min": x, "stack": x, "cat": [x], "object": [(rank,)]}
    kept |= {"each": rank, "n": count, "whole": False, "seen": "seen" if count else None}
    return SimpleNamespace(kept=kept)


class TallyAdapter(documented("Adapter")):
    counter, flag, synced_flags = "n", "whole", {"whole": True}
    knows = staticmethod(lambda value: isinstance(value, SimpleNamespace))
    storage = staticmethod(lambda metric: metric.kept)
    updates = staticmethod(lambda metric: metric.kept["n"])
    compute = staticmethod(lambda metric: [repr(each.kept) for each in metric.both])
    arguments = staticmethod(lambda metric: {"width": str(metric.kept["sum"].numel())})
    attributes = staticmethod(lambda metric: {"seen": metric.kept["seen"]})

    def states(self, metric: Any) -> Any:
        spec, shape = documented("StateSpec"), tuple(metric.kept["sum"].shape)
        numbers = [spec(kind, kind, shape=shape) for kind in ("sum", "mean", "max", "min")]
        stack = spec("stack", "stack", finish=lambda rows: rows.prod(0), shape=shape)
        each = spec("each", "each", start=str, merge=lambda own, texts: "".join(texts))
        return [*numbers, stack, each, spec("cat", "cat"), spec("object", "object")]

    def targets(self, metric: Any, path: str) -> Any:
        found = enumerate(vars(metric).get("both", [metric]))
        return [documented("Target").of(f"{path}.{i}", each, self) for i, each in found]


@on_ranks(2)
def test_an_adapter_tells_how_metrics_are_synced_and_found(comm: Any) -> None:
    dm.register_adapter(TallyAdapter())  # in this process alone, which ends with the test
    pair = SimpleNamespace(both=[tally(comm.rank + 1), tally(5, count=comm.rank)])
    before, (first, second) = repr(pair), sync_and_compute(pair, comm=comm)
    assert repr(pair) == before
    one, rows = torch.ones(2), [torch.tensor([1.0, 1.0, 2.0, 2.0])]
    kept = {"sum": 3 * one, "mean": 1.5 * one, "max": 2 * one, "min": one, "stack": 2 * one}
    kept |= {"cat": rows, "object": [(1,), (2,)], "each": "12"}
    assert first == repr(kept | {"n": 2, "whole": True, "seen": "seen"})
    assert second == repr(tally(5).kept | {"each": "5", "whole": True})
    with pytest.raises(dm.MismatchError, match="width=3"):
        sync_and_compute(tally(1, width=2 + comm.rank), comm=comm)
    compute, roots, targets = map(documented, ("compute", "roots", "targets"))
    metrics = {"b": nn.Sequential(tm.MetricCollection([tm.MaxMetric()])), "a": [pair]}
    found = [each.path for each in targets(metrics) if each.states]
    assert found == ["a.0.0", "a.0.1", "b.0.MaxMetric"]
    assert [path for path, *_ in roots(metrics)] == ["a.0", "b.0"]
    assert compute({"a": [pair]}) == {"a": [[repr(each.kept) for each in pair.both]]}
    latest = type("Latest", (TallyAdapter,), {"compute": lambda self, metric: "latest"})()
    dm.register_adapter(latest)
    assert sync_and_compute([pair, tm.MaxMetric]) == ["latest", tm.MaxMetric]
    with pytest.raises(dm.ConfigurationError):
        dm.register_adapter(tm.SumMetric)


def test_distlint_tells_which_metrics_are_averaged_as_the_tables_say(tmp_path: Path) -> None:
    of = 'x, y, task="multiclass", num_classes=3'
    wrong = ["sk.f1_score(y, x)", "sk.roc_auc_score(y, x)", "tf.r2_score(x, y)"]
    wrong += ["tf.mean_squared_error(x, y, squared=False)", f"tf.accuracy({of}, average='macro')"]
    right = ["sk.accuracy_score(y, x)", "F.cross_entropy(x, y)", "tf.mean_absolute_error(x, y)"]
    right += [f"tf.f1_score({of}, average='micro')", "sk.f1_score(y, x, average='samples')"]
    text = """
import sklearn.metrics as sk, torchmetrics.functional as tf, torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
Trainer(devices=4, strategy="ddp")
class Model(LightningModule):
    def validation_step(self, x, y):
"""
    for i, call in enumerate(wrong + right):
        text += f"        self.log('{i}', {call}, sync_dist=True)\n"
    tmp_path.joinpath("model.py").write_text(text)
    options = ("--select", "DL201", "--output-format", "concise")
    told = python("-m", "distlint", "check", ".", *options, cwd=tmp_path).stdout
    assert re.findall(r"model.py:(\d+)", told) == [str(7 + i) for i in range(len(wrong))]
