"""What one file knows of the others."""

from __future__ import annotations

import random
import textwrap
from pathlib import Path

import pytest

from distlint.analysis.project import Settings
from distlint.cli import main
from distlint.model import Finding
from distlint.rules import RULES
from distlint.run import check_files, check_stdin

ALL = list(RULES.values())
BASE = """\
    from lightning.pytorch import LightningModule

    class Base(LightningModule):
        def __init__(self):
            self.outputs = []

        def on_validation_epoch_end(self):
            self.outputs.clear()

        def share(self, x):
            return self.all_gather(x)
    """
CHILD = """\
    from {module} import {name}

    class Child({used}):
        def rename(self, x):
            return x.cuda()
    """
HELPER = """\
    import torch.distributed as dist

    def meet():
        dist.barrier()
    """
GUARDED = """\
    {statement}

    def main(rank):
        if rank == 0:
            {call}()
    """


@pytest.fixture
def write(tmp_path: Path):
    """Write files below a folder that is the top of a project; answer with their paths."""
    (tmp_path / "pyproject.toml").write_text("")

    def write(**files: str) -> list[Path]:
        paths = []
        for name, source in files.items():
            path = tmp_path / (name.replace("__", "/").replace("/init/", "/__init__") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
            paths.append(path)
        return paths

    return write


def found(paths: list[Path], *codes: str, **options: object) -> list[Finding]:
    return check_files(paths, [RULES[code] for code in codes] or ALL, **options).findings  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "name", "used"),
    [
        ("pkg.base", "Base", "Base"),
        (".base", "Base", "Base"),
        ("pkg", "Base", "Base"),
        ("pkg", "Renamed", "Renamed"),
        ("pkg.base", "Base as B", "B"),
        ("pkg", "base", "base.Base"),
        (".", "Base", "Base"),
        ("pkg.stars", "Base", "Base"),
    ],
)
def test_a_class_is_what_its_base_in_another_file_is(write, module: str, name: str, used: str) -> None:
    paths = write(
        pkg__base=BASE,
        pkg__init__="from .base import Base\nfrom .base import Base as Renamed\n",
        pkg__stars="from .base import *\n",
        pkg__child=CHILD.format(module=module, name=name, used=used),
        other=CHILD.format(module="missing.base", name="Base", used="Base"),
    )
    assert [(each.code, Path(each.path).name) for each in found(paths, "DL001")] == [("DL001", "child.py")]


def test_bases_of_bases_and_generic_bases(write) -> None:
    middle = "from pkg.base import Base\nclass Middle(Base[int]):\n    pass\n"
    paths = write(
        pkg__init__="",
        pkg__base=BASE,
        pkg__middle=middle,
        pkg__child=CHILD.format(module="pkg.middle", name="Middle", used="Middle"),
    )
    assert [Path(each.path).name for each in found(paths, "DL001")] == ["child.py"]


def test_a_plain_base_makes_a_plain_class(write) -> None:
    """``forward`` alone would make a module of a class whose base is unknown."""
    child = (
        "import torch\nfrom base import Base\nclass Child(Base):\n    def forward(self, x):\n        return x.cuda()\n"
    )
    assert found(write(base="class Base:\n    pass\n", child=child), "DL001") == []
    assert len(found(write(base="from elsewhere import Base\n", child=child), "DL001")) == 1


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        ("from pkg.comm import meet", "meet"),
        ("from pkg.comm import meet as m", "m"),
        ("from pkg import comm", "comm.meet"),
        ("import pkg.comm", "pkg.comm.meet"),
        ("import pkg.comm as c", "c.meet"),
        ("from pkg import meet", "meet"),
        ("from pkg.deep import deeper", "deeper"),
    ],
)
def test_a_helper_in_another_file(write, statement: str, call: str) -> None:
    comm, _, main = write(
        pkg__comm=HELPER,
        pkg__deep="from .comm import meet\ndef deep():\n    meet()\ndef deeper():\n    return deep()\n",
        main=GUARDED.format(statement=statement, call=call),
    )
    (comm.parent / "__init__.py").write_text("from .comm import meet\n")
    (finding,) = found([main], "DL101")  # what it imports is read though it is not asked for
    assert (finding.path, finding.line) == (str(main), 5)
    name = call.rpartition(".")[2]
    assert f"only rank 0 reaches this barrier (inside {name})" in finding.message
    guard, *_, inner = finding.trace
    assert (guard.path, guard.line, guard.text) == (str(main), 4, "if rank == 0")
    assert (Path(inner.path), inner.line, inner.label, inner.text) == (comm, 4, "collective", "dist.barrier()")
    assert found([comm, main], "DL101") == [finding]


def test_an_inherited_method_with_a_collective(write) -> None:
    child = """\
        from base import Base

        class Child(Base):
            def report(self, x):
                if self.trainer.is_global_zero:
                    self.share(x)
        """
    base, child_path = write(base=BASE, child=child)
    (finding,) = found([child_path], "DL101")
    assert "all_gather (inside share)" in finding.message
    assert (finding.trace[1].path, finding.trace[1].line) == (str(base), 11)


def test_helpers_without_a_collective_and_own_methods_are_silent(write) -> None:
    paths = write(
        comm="def meet():\n    print()\n",
        main=GUARDED.format(statement="from comm import meet", call="meet"),
        base=BASE,
        child="""\
            from base import Base

            class Child(Base):
                def share(self, x):
                    return x

                def report(self, x):
                    if self.trainer.is_global_zero:
                        self.share(x)
            """,
    )
    assert found(paths, "DL101") == []


def test_functions_that_call_each_other_across_files_come_to_an_end(write) -> None:
    one = "import torch.distributed as dist\nfrom two import b\ndef a():\n    dist.barrier()\n    b()\n"
    two = "import torch.distributed as dist\nfrom one import a\ndef b():\n    dist.all_reduce(x)\n    a()\n"
    paths = write(one=one, two=two, main=GUARDED.format(statement="from two import b", call="b"))
    assert [(Path(each.path).name, each.line) for each in found(paths, "DL101")] == [("main.py", 5)]


def test_classes_that_are_derived_from_each_other_come_to_an_end(write) -> None:
    paths = write(
        one="from two import B\nclass A(B):\n    pass\n",
        two="from one import A\nclass B(A):\n    def f(self, x):\n        x.cuda()\n",
    )
    assert found(paths) == []


def test_neither_processes_nor_the_order_of_files_change_anything(write) -> None:
    files = {f"m{number:02}": example.source for number, example in enumerate(e for rule in ALL for e in rule.bad)}
    paths = write(
        pkg__init__="from .base import Base\n",
        pkg__base=BASE,
        pkg__comm=HELPER,
        pkg__child=CHILD.format(module="pkg", name="Base", used="Base"),
        main=GUARDED.format(statement="from pkg.comm import meet", call="meet"),
        **files,
    )
    expected = found(paths, jobs=1)
    assert {Path(each.path).name for each in expected} >= {"child.py", "main.py"}
    assert found(paths, jobs=2) == expected
    for seed in range(3):
        mixed = random.Random(seed).sample(paths, len(paths))
        assert sorted(map(repr, found(mixed, jobs=1))) == sorted(map(repr, expected))


def test_each_file_alone_gives_the_same(write) -> None:
    """As pre-commit and editors check them."""
    paths = write(
        pkg__init__="from .base import Base\n",
        pkg__base=BASE,
        pkg__comm=HELPER,
        pkg__child=CHILD.format(module="pkg", name="Base", used="Base"),
        main=GUARDED.format(statement="from pkg.comm import meet", call="meet"),
    )
    together = found(paths)
    assert together == [each for path in paths for each in found([path])]
    stdin = [each for path in paths for each in check_stdin(path.read_bytes(), str(path), ALL).findings]
    assert stdin == together


def test_modules_of_one_name_are_told_apart(write) -> None:
    paths = write(
        a__comm=HELPER,
        a__main=GUARDED.format(statement="from comm import meet", call="meet"),
        b__comm="def meet():\n    pass\n",
        b__main=GUARDED.format(statement="from comm import meet", call="meet"),
    )
    assert [each.path for each in found(paths, "DL101")] == [str(paths[1])]


def test_declared_collectives(write) -> None:
    wrapper = "def gather_scores(x):\n    return external(x)\n\nclass Comm:\n    def meet(self):\n        external()\n"
    inside = """\
        from pkg.comm import Comm, gather_scores
        from vendor import meet_all

        class Mine(Comm):
            def report(self, rank, engine):
                if rank == 0:
                    self.meet()
                if rank == 0:
                    meet_all()
                if rank == 0:
                    engine.rendezvous_all()
                if rank == 0:
                    gather_scores(1)
        """
    paths = write(pkg__init__="", pkg__comm=wrapper, main=inside)
    assert found(paths, "DL101") == []
    names = frozenset({"pkg.comm.gather_scores", "pkg.comm.Comm.meet", "vendor.meet_all", "*.rendezvous_all"})
    settings = Settings(collectives=names)
    assert [each.line for each in found(paths, "DL101", settings=settings)] == [7, 9, 11, 13]


def test_declared_trainer_bases(write) -> None:
    paths = write(child=CHILD.format(module="vendor.training", name="Task", used="Task"))
    assert found(paths, "DL001") == []
    assert len(found(paths, "DL001", settings=Settings(trainer_bases=frozenset({"vendor.training.Task"})))) == 1


@pytest.mark.parametrize(
    ("name", "text", "is_out"),
    [
        ("train.py", "trainer = Trainer(use_distributed_sampler=False)\n", True),
        ("train.py", "options['use_distributed_sampler'] = False\n", True),
        ("train.py", "options = {'replace_sampler_ddp': False}\n", True),
        ("conf/trainer.yaml", "trainer:\n  use_distributed_sampler: false\n", True),
        ("conf/trainer.json", '{"trainer": {"use_distributed_sampler": false}}', True),
        ("train.sh", "python train.py --replace_sampler_ddp False --devices 4\n", True),
        ("train.sh", "python train.py --trainer.use_distributed_sampler=false\n", True),
        ("train.sh", "python train.py --replace_sampler_ddp True\n", False),
        ("train.py", "trainer = Trainer(use_distributed_sampler=True)\n", False),
        ("conf/trainer.yaml", "use_distributed_sampler: true\n", False),
        (".hidden/trainer.yaml", "use_distributed_sampler: false\n", False),
        ("conf/trainer.txt", "use_distributed_sampler: false\n", False),
    ],
)
def test_what_a_trainer_is_told_not_to_do(
    write, tmp_path: Path, name: str, text: str, is_out: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    source = next(example.source for example in RULES["DL004"].bad)
    write(data=source)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert main(["check", str(tmp_path), "--select", "DL004"]) == (0 if is_out else 1)


def test_a_fix_of_one_file_moves_the_calls_that_another_tells_of(write, capsys: pytest.CaptureFixture[str]) -> None:
    step = """\
        import torch
        import torch.distributed as dist
        from lightning.pytorch import LightningModule

        class {name}(LightningModule):
            def training_step(self, batch, batch_idx):
                return batch.to(torch.device("cuda"))
        """
    meet = "\ndef meet():\n    dist.barrier()\n"
    main_function = "\nfrom a import meet\n\ndef main():\n    if dist.get_rank() == 0:\n        meet()\n"
    a, b = (textwrap.dedent(step.format(name=name)) for name in ("A", "B"))
    paths = write(a=a + meet, b=b + main_function)
    command = ["check", *map(str, paths), "--fix", "--unsafe-fixes", "--isolated", "--no-cache"]
    assert main([*command, "--review", "--select", "DL001,DL101"]) == 1
    shown = capsys.readouterr()
    assert "2 findings fixed in 2 files\n1 finding in 2 files" in shown.err
    assert f"collective at {paths[0]}:10: dist.barrier()" in shown.out


@pytest.mark.parametrize("base", ["Base", "Base[int]"])
def test_what_a_base_in_another_file_empties(write, base: str) -> None:
    above = """\
        from typing import Generic, TypeVar
        from lightning.pytorch import LightningModule

        T = TypeVar("T")

        class Base(LightningModule, Generic[T]):
            def {method}(self):
                self.outputs{what}
        """
    child = f"""\
        import torch
        from above import Base

        class Middle({base}):
            pass

        class Between(Middle):
            pass

        class Child(Between):
            def __init__(self):
                super().__init__()
                self.outputs = []

            def validation_step(self, batch, batch_idx):
                self.outputs.append(self(batch))

            def on_validation_epoch_end(self):
                print(torch.cat(self.outputs).mean())
        """
    for what in (".clear()", ".remove(1)", ".popitem()"):
        paths = write(above=above.format(method="on_validation_epoch_start", what=what), child=child)
        assert found(paths, "DL301") == []
    paths = write(above=above.format(method="share", what=".sort()"), child=child)
    assert [each.line for each in found(paths, "DL301")] == [16]


def test_a_model_that_another_file_wraps(write) -> None:
    """The file that runs it says nothing of a wrapper; where no file wraps it, there is nothing to say."""
    program = """\
        from torch.nn.parallel import DistributedDataParallel
        from loop import evaluate

        def main(net, loader, rank):
            model = {wrapped}
            evaluate(model, loader, rank)
        """
    loop = """\
        def evaluate(model, loader, rank):
            if rank != 0:
                return None
            return [model(batch) for batch in loader]
        """
    lines = {}
    for wrapped in ("DistributedDataParallel(net)", "net"):
        paths = write(program=program.format(wrapped=wrapped), loop=loop)
        found = check_files(paths, [RULES["DL111"]]).findings
        lines[wrapped] = [(Path(each.path).name, each.line) for each in found]
    assert lines == {"DistributedDataParallel(net)": [("loop.py", 4)], "net": []}


@pytest.mark.parametrize(
    ("made", "loop", "expected"),
    [
        ("DistributedSampler(data)", "", [4]),
        ("DistributedSampler(data, shuffle=False)", "", []),
        ("DistributedSampler(data)", "    train_loader.sampler.set_epoch(epoch)\n", []),
    ],
)
def test_the_sampler_of_a_loader_that_another_file_makes(write, made: str, loop: str, expected: list[int]) -> None:
    data = "from torch.utils.data import DataLoader, DistributedSampler\n\ndef loaders(data, val):\n"
    data += f"    return DataLoader(data, sampler={made}), DataLoader(val)\n"
    train = "from data import loaders\n\ntrain_loader, val_loader = loaders(1, 2)\nfor epoch in range(9):\n"
    train += f"{loop}    for batch in train_loader:\n        model(batch)\n"
    assert [each.line for each in found(write(data=data, train=train), "DL208")] == expected
