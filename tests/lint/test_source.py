"""A file: its tree in order, what its names stand for, its classes and places."""

from __future__ import annotations

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlint.facts import Base, Facts
from distlint.pages import EXAMPLES
from distlint.source import number, pairs, positional, string
from tests.lint.helpers import RELAXED, parsed

PROGRAMS = [path.read_text() for path in sorted(EXAMPLES.glob("*/*.py"))]
IMPORTS = """\
import torch, numpy as np
import torch.distributed as dist
import torch.nn.functional as F
import os.path
import pytorch_lightning as pl
from torch import nn
from torch.distributed import all_reduce as reduce
from torch.distributed.distributed_c10d import barrier
from lightning_fabric import Fabric
from .base import Task
from . import own
from far import *
"""


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("torch.cat", "torch.cat"),
        ("np.mean", "numpy.mean"),
        ("dist.barrier", "torch.distributed.barrier"),
        ("F.mse_loss", "torch.nn.functional.mse_loss"),
        ("os.path.join", "os.path.join"),
        ("pl.Trainer", "lightning.pytorch.Trainer"),
        ("nn.Module", "torch.nn.Module"),
        ("reduce", "torch.distributed.all_reduce"),
        ("barrier", "torch.distributed.barrier"),
        ("Fabric", "lightning.fabric.Fabric"),
        ("Task", ".base.Task"),
        ("own.x", ".own.x"),
        ("self.log", "self.log"),
        ("unknown.x", "unknown.x"),
        ("LightningModule", "lightning.pytorch.LightningModule"),
        ("f(x).y", ""),
        ("x[0].y", ""),
    ],
)
def test_names(written, name):
    source = parsed(f"{IMPORTS}probe({written})\n")
    (call,) = (each for each in source.nodes(cst.Call) if source.name(each.func) == "probe")
    assert source.name(call.args[0].value) == name


def test_names_that_the_file_binds_itself():
    text = f"{IMPORTS}def dist(): ...\nclass nn: ...\ndef f(np, x): probe(np.mean)\n"
    source = parsed(f"{text}probe(dist.barrier)\nprobe(nn.Module)\n")
    found = [source.name(call.args[0].value) for call in source.nodes(cst.Call)]
    assert found == ["np.mean", "dist.barrier", "nn.Module"]


CLASSES = """\
from lightning.pytorch import LightningModule, Callback
from torch.utils.data import Dataset
from torch import nn
from torchmetrics import Metric
from base import Task
class Root(LightningModule):
    def __init__(self): self.a, self.b = f(), 1
    def training_step(self, batch, i): ...
class Model(Root):
    def forward(self, x): self.c: int = 2
class Net(nn.Module): ...
class Rows(Dataset[int], Generic[T]): ...
class Far(Task): ...
class Mine(Callback): ...
class Score(Metric): ...
class Round(Round): ...
class Plain: ...
"""


def test_classes():
    facts = Facts(bases={"base.Task": Base(frozenset({"data_module"}), frozenset({"setup"}))})
    source = parsed(CLASSES, facts)
    classes = {node.name.value: found for node, found in source.classes.items()}
    kinds = {name: set(found.kinds) for name, found in classes.items()}
    assert kinds["Root"] == kinds["Model"] == {"lightning_module", "module"}
    assert (kinds["Net"], kinds["Rows"], kinds["Far"]) == ({"module"}, {"dataset"}, {"data_module"})
    assert (kinds["Mine"], kinds["Score"]) == ({"callback"}, {"metric"})
    assert kinds["Round"] == kinds["Plain"] == set()
    assert set(classes["Model"].methods) == {"__init__", "training_step", "forward"}
    assert set(classes["Model"].attributes) == {"a", "b", "c"}
    assert classes["Far"].defines("setup")
    assert not classes["Far"].defines("forward")


@RELAXED
@given(st.sampled_from(PROGRAMS))
def test_the_tree_is_in_the_order_of_the_source(text):
    source = parsed(text)
    for kind in (cst.Call, cst.Name, cst.If, cst.FunctionDef, cst.Arg):
        nodes = source.nodes(kind)
        assert [source.order(node) for node in nodes] == sorted(source.order(n) for n in nodes)
        starts = [source.position(node).start for node in nodes if kind is cst.If]
        assert [(at.line, at.column) for at in starts] == sorted((at.line, at.column) for at in starts)
        for node in nodes:
            for outer in source.ancestors(node):
                assert source.is_within(node, outer)
                assert node in list(source.below(outer, kind))
            assert source.scope(node) in [*source.ancestors(node), source.module]
            assert source.code(node) == " ".join(source.code(node).split())
    assert set(source.nodes(cst.Call)) == set(source.below(source.module, cst.Call))


def test_scopes_methods_and_statements():
    source = parsed("""\
    class A:
        @deco()
        def f(self, x=default()):
            def inner(): probe(1)
            return [probe(2) for y in z()] if probe(3) else (lambda: probe(4))
    """)
    calls = {source.code(call): call for call in source.nodes(cst.Call)}
    a, (f, inner) = source.nodes(cst.ClassDef)[0], source.nodes(cst.FunctionDef)
    assert [source.scope(calls[f"probe({n})"]) for n in (1, 2, 3)] == [inner, f, f]
    assert isinstance(source.scope(calls["probe(4)"]), cst.Lambda)
    assert source.function(calls["probe(4)"]) is f
    assert source.scope(calls["deco()"]) is a
    assert source.method(calls["probe(1)"]) is f
    assert source.class_of(calls["probe(1)"]).node is a
    assert source.statement(calls["deco()"]) is f
    assert isinstance(source.statement(calls["probe(2)"]), cst.SimpleStatementLine)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("'a'", "a"),
        ("'a' 'b'", "ab"),
        ("f'a{x}b'", "ab"),
        ("b'a'", None),
        ("x", None),
        ("1", 1.0),
        ("-2.5", -2.5),
        ("1e3", 1000.0),
        ("-x", None),
    ],
)
def test_constants(code, value):
    node = cst.parse_expression(code)
    assert (string(node) if isinstance(value, str) else number(node)) == value
    if value is None:
        assert string(node) is None


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("a = b", "a=b"),
        ("a, b = c, d", "a=c b=d"),
        ("(a, [b, c]) = x, [y, z]", "a=x b=y c=z"),
        ("a, b = c", "(a,b)=c"),
        ("a, *b = c, d", "(a,*b)=(c,d)"),
    ],
)
def test_pairs(code, parts):
    module = cst.parse_module(code)
    assign = module.body[0].body[0]
    found = pairs(assign.targets[0].target, assign.value)
    shown = ["=".join(module.code_for_node(each) for each in pair).replace(" ", "") for pair in found]
    plain = " ".join(shown).replace("(", "").replace(")", "")
    assert plain == parts.replace("(", "").replace(")", "")


def test_arguments():
    call = cst.parse_expression("f(a, *rest, b, c=1)")
    assert [each.value for each in positional(call)] == ["a"]
