"""What the interpreter knows of values: who may disagree about them, and what was made of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.analysis.formula import DATA, RANK, SAME, UNKNOWN, ZERO
from distlint.analysis.joining import combine, join
from distlint.analysis.value import NONE_VALUE, Reason, Value, shallow
from tests.lint.analysis.reading import analyse, value, value_of

VALUES = st.builds(
    Value,
    varies=st.sampled_from([SAME, UNKNOWN, DATA, RANK]),
    family=st.sampled_from(["", "list", "loader", "none", "flag"]),
    reduced=st.sampled_from(["", "sum", "mean"]),
    scale=st.sampled_from(["", "mean", "count"]),
    formula=st.sampled_from([None, ZERO]),
    length=st.booleans(),
    grad=st.booleans(),
)


@given(VALUES, VALUES)
def test_of_two_values_no_disagreement_is_forgotten(first: Value, second: Value) -> None:
    for joined in (join(first, second), combine([first, second])):
        assert joined.varies == max(first.varies, second.varies)
    assert join(first, first) == first
    assert join(first, second).varies == join(second, first).varies
    assert join(first, second).length == join(second, first).length or "none" in (first.family, second.family)


@given(st.lists(VALUES, max_size=4))
def test_the_order_of_parts_does_not_matter(values: list[Value]) -> None:
    found = {combine(list(order))[:1] + combine(list(order))[-4:-3] for order in itertools.permutations(values)}
    assert len(found) == 1


def test_parts_of_parts_are_let_go() -> None:
    pair = Value(elements=(Value(RANK), NONE_VALUE))
    twice = Value(elements=(pair, pair))
    assert shallow(pair) == pair
    assert [part.elements for part in shallow(Value(elements=(twice, pair))).elements] == [(), ()]


@pytest.mark.parametrize(
    ("expression", "varies"),
    [
        ("3", SAME),
        ("dist.get_rank()", RANK),
        ("dist.get_rank() + 1", RANK),
        ("[0, dist.get_rank()]", RANK),
        ("{'a': dist.get_rank()}", RANK),
        ("f'{rank}.pt'", RANK),
        ("data[rank]", RANK),
        ("data[rank::world_size]", RANK),
        ("str(rank)", RANK),
        ("os.environ['LOCAL_RANK']", RANK),
        ("os.environ['WORLD_SIZE']", SAME),
        ("dist.get_world_size()", SAME),
        ("world_size * 2", SAME),
        ("len(data)", UNKNOWN),
        ("unknown", UNKNOWN),
        ("load(path)", UNKNOWN),
        ("load(rank)", UNKNOWN),
        ("(y := rank)", RANK),
        ("1 if rank == 0 else 2", RANK),
        ("[each for each in data[rank:]]", RANK),
        ("next(iter(train_loader))", DATA),
        ("lambda: rank", SAME),
    ],
)
def test_how_far_ranks_may_disagree(expression: str, varies: int) -> None:
    assert value(expression).varies == varies


@pytest.mark.parametrize(
    "before",
    [
        "y = torch.tensor(rank)\ndist.all_reduce(y)",
        "y = torch.tensor([rank])\ndist.broadcast(y, 0)",
        "y = torch.tensor(rank)\ndist.all_reduce(y.data)",
        "y = [rank]\ndist.broadcast_object_list(y, src=0)",
        "y = accelerator.gather(torch.tensor(rank))",
        "y = accelerator.reduce(rank)",
        "y = fabric.all_reduce(rank)",
        "y = [None, None]\ndist.all_gather_object(y, rank)",
        "y = fabric.broadcast(rank)",
        "if rank == 0:\n    y = find()\nelse:\n    y = None\ny = [y]\ndist.broadcast_object_list(y)",
    ],
)
def test_after_a_collective_ranks_agree(before: str) -> None:
    assert not value("y", before).is_local


@pytest.mark.parametrize(
    "before",
    [
        "for y in train_loader:\n    pass",
        "for i, y in enumerate(train_loader):\n    pass",
        "for i, (y, z) in enumerate(train_loader):\n    pass",
        "for y, z in zip(train_loader, others):\n    pass",
        "for batch in torch.utils.data.DataLoader(data):\n    y = batch['x']",
        "for batch in val_dataloader:\n    y = model(batch).loss",
        "for batch in loader:\n    y = model(**batch)[0].item()",
        "y = 0\nfor batch in loader:\n    y += model(batch).mean()",
        "y = []\nfor batch in loader:\n    y.append(model(batch))",
        "y = {}\nfor batch in loader:\n    y['a'] = model(batch)",
        "loader = DataLoader(data)\nfor y in loader:\n    pass",
    ],
)
def test_what_comes_from_a_batch_is_data(before: str) -> None:
    assert value("y", before).varies == DATA


def test_steps_of_a_module_get_batches() -> None:
    source = """
        from lightning.pytorch import LightningModule

        class M(LightningModule):
            def training_step(self, batch, batch_idx):
                x, y = batch
                loss = self(x).mean()
        """
    assert value_of(source, "loss", "training_step").varies == DATA
    assert not value_of(source, "batch_idx", "training_step").is_local


@pytest.mark.parametrize(
    ("before", "reduced", "scale", "divided"),
    [
        ("y = loss.mean()\ndist.all_reduce(y)", "sum", "mean", False),
        ("y = loss.mean()\ndist.all_reduce(y, op=dist.ReduceOp.AVG)", "mean", "mean", False),
        ("y = loss.mean()\ndist.all_reduce(y, dist.ReduceOp.MAX)", "max", "mean", False),
        ("y = loss.mean()\ndist.all_reduce(y)\ny = y / dist.get_world_size()", "sum", "mean", True),
        ("y = loss.mean()\ndist.all_reduce(y)\ny /= world_size", "sum", "mean", True),
        ("y = accelerator.gather(loss)", "gathered", "", False),
        ("y = accelerator.reduce(loss, reduction='mean')", "mean", "", False),
        ("y = fabric.all_reduce(loss)", "mean", "", False),
        ("y = fabric.all_reduce(loss, reduce_op='sum')", "sum", "", False),
    ],
)
def test_what_was_made_of_a_value(before: str, reduced: str, scale: str, divided: bool) -> None:
    found = value("y", before)
    assert (found.reduced, found.scale, found.divided) == (reduced, scale, divided)


@pytest.mark.parametrize(
    ("expression", "wrapped"),
    [
        ("torch.nn.parallel.DistributedDataParallel(net)", "ddp"),
        ("torch.nn.parallel.DistributedDataParallel(net).module", ""),
        ("accelerator.prepare(net)", "prepared"),
        ("accelerator.prepare(net, opt)[0]", "prepared"),
        ("fabric.setup(net, opt)[0]", "prepared"),
        ("torch.distributed.fsdp.FullyShardedDataParallel(net)", "fsdp"),
        ("net", ""),
    ],
)
def test_wrapped_models_are_known(expression: str, wrapped: str) -> None:
    assert value(expression).wrapped == wrapped


def test_a_tuple_of_prepared_things_keeps_each_apart() -> None:
    source = """
        from accelerate import Accelerator
        def f(net, opt):
            accelerator = Accelerator()
            train_dl = torch.utils.data.DataLoader(data)
            model, opt, train_dl = accelerator.prepare(net, opt, train_dl)
            for batch in train_dl:
                x = model(batch)
        """
    assert value_of(source, "model").wrapped == "prepared"
    assert value_of(source, "train_dl").family == "loader"
    assert value_of(source, "x").varies == DATA


def test_a_reason_says_where_disagreement_begins() -> None:
    reason = value("step", "step = 0\nif rank == 0:\n    step = resume()\n").reason
    assert reason is not None
    assert reason == Reason(6, reason.text, control=True)
    assert "rank" in reason.text


@pytest.mark.parametrize("test", ["rank == 0", "dist.get_rank() == 0", "accelerator.is_main_process", "not rank"])
def test_what_is_set_under_a_test_is_ranks_own(test: str) -> None:
    for body in ("x = 1", "x += 1", "x, y = 1, 2", "x: int = 1", "[x] = [1]", "(x := 1)", "for x in 'ab': pass"):
        found = value_of(f"def f(*rest):\n    x = 0\n    if {test}:\n        {body}\n")
        assert found.is_rank, body
        assert found.reason is not None
        assert found.reason.control


def test_what_is_put_into_a_container_under_a_test_is_ranks_own() -> None:
    for body in ("x['a'] = rank", "x.append(rank)", "x.update(a=rank)", "x.add(rank)", "x.setdefault('a', rank)"):
        for before, after in (("if rank == 0:\n        ", ""), ("if a:\n        pass\n    else:\n        ", "")):
            found = value_of(f"def f(*rest):\n    x = make()\n    {before}{body}\n    {after}\n")
            assert found.is_rank, (body, before)


def test_both_ways_alike_is_no_difference() -> None:
    source = "def f(*rest):\n    if rank == 0:\n        x = 1\n    else:\n        x = 1\n"
    assert not value_of(source).is_local


def test_attributes_go_from_method_to_method() -> None:
    source = """
        class A:
            def __init__(self):
                self.main = dist.get_rank() == 0
                self.plain = 3
            def f(self):
                x = self.main
                y = self.plain
        """
    assert value_of(source).formula == ZERO
    assert not value_of(source, "y").is_local


def test_attributes_are_inherited_and_told_late() -> None:
    source = """
        class B:
            def f(self):
                x = self.main
                y = self.is_first()
        class A(B):
            def f(self):
                x = self.main
                y = self.is_first()
        class B2(B): pass
        """
    base = """
        class Base:
            def setup(self):
                self.main = dist.get_rank() == 0
            def is_first(self):
                return self.main
        class A(Base):
            def f(self):
                x = self.main
                y = self.is_first()
        """
    assert value_of(source).formula is None
    assert value_of(base).formula == ZERO
    assert value_of(base, "y").formula == ZERO


def test_names_of_the_file_and_of_functions_around() -> None:
    source = """
        MAIN = int(os.environ["RANK"]) == 0
        def outer(rank_here):
            first = MAIN
            def f():
                x = first
        """
    assert value_of(source).formula == ZERO


def test_every_rank_has_the_same_after_the_test_was_undone() -> None:
    assert not value("y", "y = rank\ny = 3").is_local


def test_analysis_of_nothing() -> None:
    assert list(analyse("").events()) == []


@pytest.mark.parametrize(
    ("varies", "parts", "told"), [(DATA, (DATA, DATA), DATA), (DATA, (SAME, DATA), UNKNOWN), (RANK, (RANK, SAME), RANK)]
)
def test_other_files_are_not_told_that_all_parts_are_a_ranks_own_where_some_are(
    varies: int, parts: tuple[int, ...], told: int
) -> None:
    assert Value(varies, elements=tuple(map(Value, parts))).for_other_files().varies == told
