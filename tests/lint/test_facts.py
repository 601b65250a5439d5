"""What is known of a project: from code and settings, each with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from distlint.cli import main
from distlint.config import Config
from distlint.facts import Base, Facts, Project, describe, scan
from distlint.run import projects_of
from tests.lint.helpers import WAITS, found, write

# What says that several devices run a project, and what says nothing: a file, and its text.
MANY = """\
m.py: trainer = Trainer(devices=4)
m.py: trainer = Trainer(devices=-1, max_epochs=3)
m.py: trainer = pl.Trainer(gpus=[0, 1])
m.py: trainer = Trainer(strategy="ddp")
m.py: trainer = Trainer(strategy=DDPStrategy(find_unused_parameters=True))
m.py: trainer = Trainer(num_nodes=2)
m.py: dist.init_process_group('nccl')
m.py: net = DistributedDataParallel(net)
m.py: net = fully_shard(net)
m.py: class T:|    strategy: str = 'ddp'
conf/trainer.yaml: trainer:|  devices: 4  # of them
conf/trainer.yml: strategy: ddp_find_unused_parameters_true
conf/t.yaml: accelerator: ddp
conf/t.yaml: _target_: lightning.pytorch.strategies.FSDPStrategy
acc.yaml: distributed_type: MULTI_GPU
acc.yaml: num_processes: 8
pyproject.toml: [tool.mine]|num_nodes = 2
setup.cfg: [train]|devices = 2
conf.json: {|  "trainer": {"devices": 4}|}
run.sh: torchrun --nproc_per_node=4 train.py
run.sh: python -m torch.distributed.launch --nproc_per_node 2 train.py
run.sh: python train.py --trainer.devices 4
run.sh: python train.py trainer.devices=4 trainer.strategy=ddp
run.sh: accelerate launch --num_processes 2 train.py
run.sh: accelerate launch --multi_gpu train.py
run.bash: deepspeed train.py --lr 1
run.sh: mpirun -np 4 python train.py
run.sh: CUDA_VISIBLE_DEVICES=0,1 python train.py
job.sbatch: #SBATCH --ntasks-per-node=4
job.slurm: #SBATCH --gres=gpu:a100:8
Dockerfile: CMD ["x"]|RUN torchrun --nproc_per_node=2 train.py
Makefile: train:|\ttorchrun --nproc_per_node=2 train.py
.github/workflows/gpu.yml:       - run: torchrun --nproc-per-node 2 test.py
.gitlab-ci.yml: script: accelerate launch --num_processes=2 test.py
"""
NOT = """\
m.py: trainer = Trainer(devices=1)
m.py: # torchrun --nproc_per_node=4 m.py
m.py: x = 1  # with strategy='ddp'
m.py: devices = args.devices
m.py: import torch.distributed as dist
conf.yaml: devices: 1|# devices: 4|strategy: auto # or ddp, strategy: ddp
conf.json: {|// "devices": 4|"devices": 1}
run.sh: python train.py  # torchrun --nproc_per_node=4 train.py
run.sh: torchrun --nproc_per_node=1 train.py
job.sbatch: ##SBATCH --ntasks=4
"""


@pytest.mark.parametrize("line", [*(MANY + NOT).splitlines(), f'data.json: [{"1, " * 1000}"devices: 4"]'])
def test_several_devices(line):
    path, _, text = line.partition(": ")
    text = text.replace("|", "\n")
    project = Project({path: scan(text, path)}, Facts())
    assert project.of(path).devices == ("many" if line in MANY else "")
    for fact in scan(text, path).facts:
        if fact.what.startswith("many: "):
            assert (fact.path, fact.text) == (path, text.splitlines()[fact.line - 1].strip())
            kind = fact.what.removeprefix("many: ")
            assert f"{path}:{fact.line}: several devices, by {kind}: {fact.text}" in describe(project, Facts())


OTHERS = [
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
]


def test_other_facts_and_where_trainers_of_a_folder_differ_nobody_knows():
    for path, text, field, value in OTHERS:
        assert getattr(Project({path: scan(text, path)}, Facts()).of(path), field) == value, text
    scans = {path: scan(f"Trainer(devices={number}).fit(x)", path) for path, number in (("a/m.py", 4), ("a/n.py", 1))}
    assert Project(scans, Facts()).of("a/m.py").devices == ""
    for said in ("one", "many"):  # what the user says counts for more
        assert Project(scans, Facts(devices=said)).of("a/m.py").devices == said


def devices(folder, *paths):
    projects = projects_of([str(folder / path) for path in paths], Config(extend_exclude=("old",)), map)
    return {Path(path).name: made.of(path).devices for path, made in projects.items()}


def test_the_project_is_the_same_whichever_files_are_named(tmp_path, monkeypatch):
    write(tmp_path, pyproject_toml="", model=WAITS, src__deep__data="x = 1\n", conf__t_yaml="devices: 2")
    for paths in (["model.py"], ["src/deep/data.py"], ["model.py", "src/deep/data.py"]):
        known = devices(tmp_path, *paths)
        assert set(known.values()) == {"many"}
        assert known.keys() >= {"model.py", "data.py", "t.yaml"}
    monkeypatch.chdir(tmp_path / "src")
    assert devices(Path(), "deep/data.py")["data.py"] == "many"


@pytest.mark.parametrize("mark", ["setup_cfg", "pyproject_toml", "setup", "_git__x_txt"])
def test_a_folder_with_a_mark_of_its_own_is_another_project_and_an_excluded_one_says_nothing(
    tmp_path, mark, capsys, monkeypatch
):
    write(tmp_path, setup_cfg="", a=WAITS, old__run_sh="torchrun a.py", sub__b=WAITS, sub__deep__run_sh="torchrun b.py")
    write(tmp_path, **{f"sub__{mark}".replace("___git", "__.git"): ""})
    both = devices(tmp_path, "a.py", "sub/b.py")
    assert (both["a.py"], both["b.py"]) == ("", "many")
    assert devices(tmp_path, "sub/b.py")["b.py"] == "many"
    assert devices(tmp_path, "a.py")["a.py"] == ""
    monkeypatch.chdir(tmp_path)
    assert main(["facts", "--extend-exclude", "old"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(":")[0] for line in told) == ["nothing is known of this project", "sub/deep/run.sh"]
    assert found(capsys, "--extend-exclude", "old") == [("sub/b.py", "DL202")]


CLASSES = {
    "base.py": "import lightning as L\nclass Root(L.LightningModule):\n    def log(self): ...\n"
    "class Task(Root):\n    def meet(self): ...\nclass Plain:\n    pass\n",
    "pkg/__init__.py": "from .task import Inner\n",
    "pkg/task.py": "from base import Task\nclass Inner(Task[int], metaclass=M): ...\n",
    "round.py": "class A(B): ...\nclass B(A): ...\n",
    "far.py": "from elsewhere import Base\nclass Far(Base): ...\n",
    "m.py": "import base, pkg.task as t\nfrom far import Far\nfrom base import Task as T, Plain\n"
    "from pkg import Inner\nfrom round import A\nclass C(base.Task, t.Inner): ...\n",
}


def test_classes_are_followed_through_files():
    declared = Base(frozenset({"lightning_module"}))
    known = Base(declared.kinds, frozenset({"log", "meet"}))
    settings = Facts(bases={"elsewhere.Base": declared})
    facts = Project({path: scan(text, path) for path, text in CLASSES.items()}, settings).of("m.py")
    wanted = dict.fromkeys(["base.Task", "pkg.Inner", "pkg.task.Inner"], known) | {"far.Far": declared}
    wanted |= dict.fromkeys(["base.Plain", "round.A", "base.Unknown"], Base())
    assert {name: facts.base(name) for name in wanted} == wanted
