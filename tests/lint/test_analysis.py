"""What is known of a program: what names stand for, what a value is, and what only some ranks reach."""

from __future__ import annotations

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.facts import Base, Facts
from distlint.guards import Arms, guards, rank_test
from distlint.source import pairs
from distlint.values import Values
from tests.lint.helpers import RELAXED, parsed


def probed(source):
    """Return the program's call of ``probe``."""
    (call,) = (each for each in source.nodes(cst.Call) if source.name(each.func) == "probe")
    return call


IMPORTS = """\
import torch, numpy as np, os.path
import torch.distributed as dist
import torch.nn.functional as F
import pytorch_lightning as pl
from torch.distributed import all_reduce as reduce
from torch.distributed.distributed_c10d import barrier
from .base import Task
from . import own
from far import *
import once, twice
def once(): ...
class twice: ...
def f(np): probe({})
"""
NAMES = {
    "dist.barrier": "torch.distributed.barrier",
    "F.mse_loss": "torch.nn.functional.mse_loss",
    "os.path.join": "os.path.join",
    "pl.Trainer": "lightning.pytorch.Trainer",
    "reduce": "torch.distributed.all_reduce",
    "barrier": "torch.distributed.barrier",
    "Task": ".base.Task",
    "own.x": ".own.x",
    "self.log": "self.log",
    "LightningModule": "lightning.pytorch.LightningModule",
    "f(x).y": "",
    "x[0].y": "",
    **{name: name for name in ("np.mean", "once.x", "twice.x")},  # which the file binds itself
}


@pytest.mark.parametrize("written", NAMES)
def test_names(written):
    source = parsed(IMPORTS.format(written))
    assert source.name(probed(source).args[0].value) == NAMES[written]


CLASSES = """\
from lightning.pytorch import LightningModule
from torch.utils.data import Dataset
from base import Task
class Root(LightningModule):
    def __init__(self): self.a, self.b = f(), 1
    def training_step(self, batch, i): ...
class Model(Root):
    def forward(self, x): self.c: int = 2
class Rows(Dataset[int], Generic[T]): ...
class Far(Task): ...
class Round(Round): ...
"""


def test_classes():
    facts = Facts(bases={"base.Task": Base(frozenset({"data_module"}), frozenset({"setup"}))})
    classes = {node.name.value: found for node, found in parsed(CLASSES, facts).classes.items()}
    kinds = {name: set(found.kinds) for name, found in classes.items()}
    assert kinds["Root"] == kinds["Model"] == {"lightning_module", "module"}
    assert (kinds["Rows"], kinds["Far"], kinds["Round"]) == ({"dataset"}, {"data_module"}, set())
    assert set(classes["Model"].methods) == {"__init__", "training_step", "forward"}
    assert set(classes["Model"].attributes) == {"a", "b", "c"}
    assert (classes["Far"].defines("setup"), classes["Far"].defines("forward")) == (True, False)


def test_pairs_of_an_assignment():
    wanted = {"(a, [b, c]) = x, [y, z]": "a=x b=y c=z", "a, b = c": "a,b=c", "a, *b = c, d": "a,*b=c,d"}
    for code, shown in wanted.items():
        module = cst.parse_module(code)
        assign = module.body[0].body[0]
        found = pairs(assign.targets[0].target, assign.value)
        texts = ["=".join(map(module.code_for_node, pair)).replace(" ", "") for pair in found]
        assert " ".join(texts).replace("(", "").replace(")", "") == shown


# --- values ---------------------------------------------------------------------------------------------------------

MODULE = """\
import math, torch
import torch.distributed as dist
import torch.nn.functional as F
import numpy as np
from torch import nn
from lightning.pytorch import LightningModule
from sklearn.metrics import f1_score, accuracy_score
from torchmetrics import F1Score
from mine import own

class Model(LightningModule):
    def __init__(self):
        self.f1 = F1Score("binary")
        self.scores = nn.ModuleDict({{"a": F1Score("binary")}})
        self.criterion = nn.CrossEntropyLoss()
        self.other = own()

    def shared(self, batch):
        return F.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        {body}
"""
KINDS = {
    "constant": ["1", "None"],
    "share": ["batch", "self(x)", "x.mean().item()", "2 * x + 1", "batch['x']", "accuracy_score(y, x)"],
    "loss": ["loss.item()", "loss * 0.5", "{'a': loss}['a']", "self.criterion(self(x), y)", "self.shared(batch)"],
    "metric": ["self.f1", "self.scores['a']", "F1Score('binary')"],
    "result": ["self.f1(x, y)", "self.f1.compute()", "self.scores['a'].compute()"],
    "reduced": ["dist.all_reduce(x)", "self.all_gather(x).mean()"],
    "not averageable": ["f1_score(y.cpu(), x.cpu(), average='macro')", "np.median(x)", "torch.exp(loss)"],
    "unknown": ["batch_idx", "unknown", "self.other", "own()", "torch.ones(3)", "x.shape"],
}
AFTER = {
    "z = x; z = self.all_gather(z)": "reduced",
    "z = x; dist.all_reduce(z)": "reduced",
    "z = self.all_gather(x); z = x": "share",
    "z = 0\nfor each in batch: z += each": "share",
    "z = x; z = unknown(1)": "unknown",
    "z: float = loss": "loss",
    "if (z := loss) > 0: pass": "loss",
    "(y, [b, z]) = x, [1, loss]": "loss",
}


def value(expression, *before, facts=None):
    body = "\n        ".join([*before, f"probe({expression})"])
    source = parsed(MODULE.format(body=body), facts or Facts())
    return Values(source).of(probed(source).args[0].value)


@pytest.mark.parametrize(("kind", "expression"), [(kind, each) for kind in KINDS for each in KINDS[kind]])
def test_expressions_and_variables_that_hold_them(kind, expression):
    assert value(expression).kind == kind
    if kind != "unknown":
        assert value("d['k']", f"a, b = 1, {expression}", "d = {'k': b}").kind == kind
    if kind not in ("unknown", "metric"):
        assert value("z", "z = 1", "if x:", f"    z = {expression}").kind == kind


def test_what_a_variable_is_after_several_statements_and_what_the_user_has_declared():
    assert {before: value("z", *before.splitlines()).kind for before in AFTER} == AFTER
    assert value("own(x)").kind == "share"
    facts = Facts(non_averageable={"mine.own": "it ranks"}, averageable=frozenset({"f1_score"}))
    found = value("own(x)", facts=facts)
    assert (found.kind, found.name, found.reason) == ("not averageable", "own", "it ranks")


@pytest.mark.parametrize("link", ["({} + x)", "f({})", "[{}]", "({} if x else y)", "{}.mean()"])
def test_what_is_deep_ends(link):
    expression = "x"
    for _ in range(60):
        expression = link.format(expression)
    assert value(expression).kind in ("unknown", "share")
    assert value("z", "z = x", *["z = z + z"] * 60).kind in ("unknown", "share")


# --- what only some ranks reach -------------------------------------------------------------------------------------

PREAMBLE = """\
import os
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only
is_main = dist.get_rank() == 0
me = dist.get_rank()
"""
NONE = Arms()
ZERO = Arms(True, True, True)  # both arms are of some ranks only, the first one is rank 0's
OTHERS = Arms(True, True, False)
THEN = Arms(True, False, True)
TESTS = {
    ZERO: ["rank == 0", "0 == rank", "rank < 1", "rank in (0, 1)", "not rank", "args.local_rank == 0", "me == 0"],
    OTHERS: ["rank != 0", "rank > 0", "rank not in [0]", "self.global_rank == 1", "not is_main"],
    THEN: ["rank == 0 and x", "x and rank == 0"],
    THEN.turned: ["not (rank == 0 and x)"],
    Arms(False, True, False): ["rank != 0 or x"],
    Arms(False, True, True): ["rank == 0 or x"],
    NONE: ["x", "x and y", "rank >= 0", "rank > -1", "rank is None", "rank == other", "world_size > 1", "epoch == 0"],
}
TESTS[ZERO] += ["int(os.environ['RANK']) == 0", "os.environ.get('LOCAL_RANK', '0') == '0'", "bool(is_main_process())"]
TESTS[ZERO] += ["self.trainer.is_global_zero", "accelerator.is_main_process", "is_main", "not not is_main"]
WANTED = {test: arms for arms, tests in TESTS.items() for test in tests}
KNOWN = st.sampled_from(sorted(WANTED))  # but for what one process alone passes


def arms(test):
    source = parsed(f"{PREAMBLE}if {test}: pass\n")
    return rank_test(source, source.nodes(cst.If)[0].test)


@pytest.mark.parametrize("test", [*WANTED, "rank == -1"])
def test_which_arms_only_some_ranks_reach(test):
    wanted = WANTED.get(test, NONE)
    asked = 3 if wanted.then or wanted.orelse else 2  # without arms, none is rank 0's
    assert arms(test)[:asked] == wanted[:asked]


@RELAXED
@given(KNOWN, KNOWN)
def test_not_and_and_or_go_together(one, other):
    left, right = arms(f"({one})"), arms(f"({other})")
    assert arms(f"not ({one})") == left.turned
    both, either = arms(f"({one}) and ({other})"), arms(f"({one}) or ({other})")
    assert both.then == (left.then or right.then)
    assert both.orelse == (left.orelse and right.orelse)
    assert either.orelse == (left.orelse or right.orelse)
    assert arms(f"not (({one}) and ({other}))") == both.turned


FIRSTS = {
    "if rank == 0: probe()": [True],
    "if rank == 0: pass\nelif x: probe()": [False],
    "if x: pass\nelif rank == 0: probe()": [True],
    "if rank == 0:\n    if rank > 0: probe()": [False, True],
    "if probe() and rank == 0: pass": [],
    "if rank == 0 and probe(): pass": [True],
    "rank == 0 or probe()": [False],
    "y = 1 if rank == 0 else probe()": [False],
    "if rank == 0: return\nprobe()": [False],
    "if rank != 0:\n    x()\n    return\nprobe()": [True],
    "for y in x:\n    if rank != 0: continue\n    probe()": [True],
    "for y in x:\n    if rank != 0: continue\nprobe()": [],
    "if rank != 0: raise ValueError\nprobe()": [],
    "if rank != 0: return\nelse: x()\nprobe()": [True],
    "probe()\nif rank != 0: return": [],
    "for rank in range(4):\n    if rank == 0: probe()": [],
    "with open(x):\n    if rank == 0:\n        while y: probe()": [True],
    "if rank == 0:\n    def inner(): probe()": [],
    "if rank == 0: f(lambda: probe())": [],
}


@pytest.mark.parametrize("body", FIRSTS)
def test_guards_around_a_call(body):
    indented = body.replace("\n", "\n    ")
    source = parsed(f"{PREAMBLE}def f(x, rank):\n    {indented}\n")
    found = list(guards(source, probed(source)))
    assert [guard.first for guard in found] == FIRSTS[body]
    leaves = "return\n" in body or "continue\n" in body
    assert all(guard.leaves == leaves for guard in found)


@pytest.mark.parametrize("name", ["rank_zero_only", "utils.master_only", "x.on_main_process()", "x"])
def test_decorators(name):
    source = parsed(f"{PREAMBLE}@{name}\ndef f():\n    probe()\n")
    assert len(list(guards(source, probed(source)))) == (name != "x")
