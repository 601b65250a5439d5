"""What is known of a project: from code and settings, each with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.cli import main
from distlint.config import Config
from distlint.facts import Base, Facts, Project, describe, scan
from distlint.run import projects_of
from tests.lint.helpers import WAITS, found, write

MANY = [
    ("m.py", "trainer = Trainer(devices=4)"),
    ("m.py", "trainer = Trainer(devices=-1, max_epochs=3)"),
    ("m.py", "trainer = pl.Trainer(gpus=[0, 1])"),
    ("m.py", 'trainer = Trainer(strategy="ddp")'),
    ("m.py", "trainer = Trainer(strategy=DDPStrategy(find_unused_parameters=True))"),
    ("m.py", "trainer = Trainer(num_nodes=2)"),
    ("m.py", "dist.init_process_group('nccl')"),
    ("m.py", "net = DistributedDataParallel(net)"),
    ("m.py", "net = fully_shard(net)"),
    ("m.py", "class T:\n    strategy: str = 'ddp'"),
    ("conf/trainer.yaml", "trainer:\n  devices: 4  # of them"),
    ("conf/trainer.yml", "strategy: ddp_find_unused_parameters_true"),
    ("conf/t.yaml", "accelerator: ddp"),
    ("conf/t.yaml", "_target_: lightning.pytorch.strategies.FSDPStrategy"),
    ("acc.yaml", "distributed_type: MULTI_GPU"),
    ("acc.yaml", "num_processes: 8"),
    ("pyproject.toml", "[tool.mine]\nnum_nodes = 2"),
    ("setup.cfg", "[train]\ndevices = 2"),
    ("conf.json", '{\n  "trainer": {"devices": 4}\n}'),
    ("conf.json", '{"strategy": "deepspeed_stage_2"}'),
    ("run.sh", "torchrun --nproc_per_node=4 train.py"),
    ("run.sh", "python -m torch.distributed.launch --nproc_per_node 2 train.py"),
    ("run.sh", "python train.py --trainer.devices 4"),
    ("run.sh", "python train.py trainer.devices=4 trainer.strategy=ddp"),
    ("run.sh", "accelerate launch --num_processes 2 train.py"),
    ("run.sh", "accelerate launch --multi_gpu train.py"),
    ("run.bash", "deepspeed train.py --lr 1"),
    ("run.sh", "mpirun -np 4 python train.py"),
    ("run.sh", "CUDA_VISIBLE_DEVICES=0,1 python train.py"),
    ("job.sbatch", "#SBATCH --ntasks-per-node=4"),
    ("job.slurm", "#SBATCH --gres=gpu:a100:8"),
    ("Dockerfile", 'CMD ["x"]\nRUN torchrun --nproc_per_node=2 train.py'),
    ("Makefile", "train:\n\ttorchrun --nproc_per_node=2 train.py"),
    (".github/workflows/gpu.yml", "      - run: torchrun --nproc-per-node 2 test.py"),
    (".gitlab-ci.yml", "script: accelerate launch --num_processes=2 test.py"),
]
NOT = [
    ("m.py", "trainer = Trainer(devices=1)"),
    ("m.py", "# torchrun --nproc_per_node=4 m.py"),
    ("m.py", "x = 1  # with strategy='ddp'"),
    ("m.py", "devices = args.devices"),
    ("m.py", "import torch.distributed as dist"),
    ("conf.yaml", "devices: 1\n# devices: 4\nstrategy: auto # or ddp, strategy: ddp"),
    ("conf.json", '{\n// "devices": 4\n"devices": 1}'),
    ("run.sh", "python train.py  # torchrun --nproc_per_node=4 train.py"),
    ("run.sh", "torchrun --nproc_per_node=1 train.py"),
    ("job.sbatch", "##SBATCH --ntasks=4"),
    ("readme.md", "torchrun --nproc_per_node=4 train.py"),
    ("data.json", "[" + "1, " * 1000 + '"devices: 4"]'),
]


def facts_of(path, text):
    """Return the facts of a line, wherever the file stands in its project."""
    return Project({path: scan(text, path)}, Facts()).of(path)


@pytest.mark.parametrize(("path", "text"), MANY)
def test_several_devices(path, text, tmp_path, capsys):
    facts = scan(text, path).facts
    many = [fact for fact in facts if fact.what.startswith("many: ")]
    assert facts_of(path, text).devices == "many"
    for fact in many:
        assert (fact.path, fact.text) == (path, text.splitlines()[fact.line - 1].strip())
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    write(tmp_path, **({} if path == "pyproject.toml" else {"pyproject_toml": ""}), src__model=WAITS)
    assert [code for _, code in found(capsys, tmp_path / "src")] == ["DL202"]
    capsys.readouterr()
    assert main(["facts", str(tmp_path / "src")]) == 0
    out = capsys.readouterr().out
    for fact in many:
        kind = fact.what.removeprefix("many: ")
        shown = f"{tmp_path / path}:{fact.line}: several devices, by {kind}: {fact.text}\n"
        assert shown in out


@pytest.mark.parametrize(("path", "text"), NOT)
def test_nothing_is_known_of_devices(path, text, tmp_path, capsys):
    (tmp_path / path).write_text(text)
    write(tmp_path, setup_cfg="", model=WAITS)
    assert [code for _, code in found(capsys, tmp_path / "model.py")] == []
    if path != "readme.md":
        assert facts_of(path, text).devices == ""


@pytest.mark.parametrize(
    ("path", "text", "field", "value"),
    [
        ("m.py", 'cb = ModelCheckpoint(monitor="val_f1")', "monitored", {"val_f1"}),
        ("m.py", "f(a(monitor=\"b\"), c(monitor='d'))", "monitored", {"b", "d"}),
        ("m.py", "cb = EarlyStopping(monitor=args.name)", "monitored", {""}),
        ("m.py", '# ModelCheckpoint(monitor="val_f1")', "monitored", set()),
        ("c.yaml", "  monitor: val/acc # highest", "monitored", {"val/acc"}),
        ("c.yaml", '  "monitor": "val_loss"', "monitored", {"val_loss"}),
        ("m.py", "args = Args(metric_for_best_model='f1')", "monitored", {"f1"}),
        ("m.py", "mp.spawn(work, nprocs=2)", "spawns", True),
        ("m.py", "Trainer(strategy='ddp_spawn')", "spawns", True),
        ("m.py", "Trainer(strategy='dp')", "dp", True),
        ("m.py", "Trainer(strategy='ddp')", "dp", False),
        ("c.yaml", "strategy: dp", "dp", True),
        ("m.py", "trainer = pl.Trainer()", "has_trainer", True),
        ("m.py", "from lightning.pytorch import Callback, Trainer", "has_trainer", True),
        ("c.yaml", "_target_: lightning.pytorch.Trainer", "has_trainer", True),
        ("m.py", "from transformers import Trainer", "has_trainer", False),
        ("m.py", "Trainer(use_distributed_sampler=False)", "own_sampler", True),
    ],
)
def test_other_facts(path, text, field, value):
    assert getattr(facts_of(path, text), field) == value


def test_what_the_user_says_counts_for_more():
    scans = {"m.py": scan("Trainer(devices=4)", "m.py"), "n.py": scan("x = 1", "n.py")}
    for said in ("one", "many"):
        project = Project(scans, Facts(devices=said))
        assert project.of("m.py").devices == project.of("n.py").devices == said
        assert describe(project, Facts(devices=said)).startswith(f'devices = "{said}" by [tool')
        assert "m.py:1: several devices, by devices: Trainer(devices=4)" in describe(project, Facts())


def devices(folder, *paths):
    projects = projects_of([str(folder / path) for path in paths], Config(), map)
    return {Path(path).name: made.of(path).devices for path, made in projects.items()}


def test_the_project_is_the_same_whichever_files_are_named(tmp_path, monkeypatch):
    write(
        tmp_path,
        pyproject_toml="",
        model=WAITS,
        src__deep__data="x = 1\n",
        conf__t_yaml="devices: 2",
    )
    for paths in (["model.py"], ["src/deep/data.py"], ["model.py", "src/deep/data.py"]):
        known = devices(tmp_path, *paths)
        assert set(known.values()) == {"many"}
        assert known.keys() >= {"model.py", "data.py", "t.yaml"}
    monkeypatch.chdir(tmp_path / "src")
    assert devices(Path(), "deep/data.py")["data.py"] == "many"


@pytest.mark.parametrize("mark", ["setup_cfg", "pyproject_toml", "setup", "_git__x_txt"])
def test_a_folder_with_a_mark_of_its_own_is_another_project(tmp_path, mark):
    mark = f"sub__{mark}".replace("___git", "__.git")
    write(
        tmp_path,
        setup_cfg="",
        a=WAITS,
        sub__b=WAITS,
        **{mark: ""},
        sub__deep__run_sh="torchrun b.py",
    )
    assert devices(tmp_path, "a.py", "sub/b.py")["a.py"] == ""
    assert devices(tmp_path, "a.py", "sub/b.py")["b.py"] == "many"
    assert devices(tmp_path, "sub/b.py")["b.py"] == "many"
    assert devices(tmp_path, "a.py")["a.py"] == ""


def test_what_is_excluded_says_nothing(tmp_path):
    write(tmp_path, pyproject_toml="", a="x = 1\n", old__run_sh="torchrun a.py")
    (path,) = [str(tmp_path / "a.py")]
    config = Config(file=tmp_path / "pyproject.toml", extend_exclude=("old",))
    assert projects_of([path], config, map)[path].of(path).devices == ""


def test_the_command_says_so_where_nothing_is_known(tmp_path, capsys):
    for files in ({"pyproject_toml": ""}, {"a": "x = 1\n"}):
        write(tmp_path, **files)
        assert main(["facts", str(tmp_path)]) == 0
        assert capsys.readouterr().out == "nothing is known of this project\n"


def test_facts_of_several_projects_are_told_apart(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(write(tmp_path, a__setup="", a__m="Trainer(devices=2)", b__setup="", b__m=""))
    assert main(["facts"]) == 0
    out = capsys.readouterr().out
    assert out == ("a/m.py:1: several devices, by devices: Trainer(devices=2)\nnothing is known of this project\n")


CLASSES = {
    "base.py": "import lightning as L\nclass Root(L.LightningModule):\n    def log(self): ...\n"
    "class Task(Root):\n    def meet(self): ...\nclass Plain:\n    pass\n",
    "pkg/__init__.py": "from .task import Inner\n",
    "pkg/task.py": "from base import Task\nclass Inner(Task[int], metaclass=M): ...\n",
    "round.py": "class A(B): ...\nclass B(A): ...\n",
    "m.py": "import base, pkg.task as t\nfrom base import Task as T, Plain\nfrom pkg import Inner\n"
    "from round import A\nclass C(base.Task, t.Inner): ...\n",
}


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("base.Task", {"log", "meet"}),
        ("pkg.Inner", {"log", "meet"}),
        ("pkg.task.Inner", {"log", "meet"}),
        ("base.Plain", None),
        ("round.A", None),
        ("base.Unknown", None),
    ],
)
def test_classes_are_followed_through_files(name, methods):
    project = Project({path: scan(text, path) for path, text in CLASSES.items()}, Facts())
    known = project.of("m.py").base(name)
    if methods is None:
        assert known == Base()
    else:
        assert known == Base(frozenset({"lightning_module"}), frozenset(methods))


def test_declared_bases_count():
    settings = Facts(bases={"far.Base": Base(frozenset({"lightning_module"}))})
    scans = {"m.py": scan("from far import Base\nclass A(Base): ...\n", "m.py")}
    scans["n.py"] = scan("from m import A\nclass B(A): ...\n", "n.py")
    assert Project(scans, settings).of("n.py").base("m.A").kinds == {"lightning_module"}
