"""A finding is sure only where the code proves it; what it only suggests is for review, or nothing at all."""

from __future__ import annotations

import textwrap

import pytest

from distlint.engine import check_source
from distlint.rules import RULES

START = "import os, torch\nimport torch.distributed as dist\n"
CASES = {
    "a number computed from the rank": (
        "DL101",
        """
        def f():
            if dist.get_rank() % 2 == 0:
                dist.barrier()
        """,
        ["review"],
    ),
    "a text made of the rank": (
        "DL101",
        """
        def f():
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            if "cuda" in str(device):
                dist.barrier()
        """,
        [],
    ),
    "a setting beside the rank": (
        "DL101",
        """
        def f(**options):
            options["device"] = int(os.environ["LOCAL_RANK"])
            patience = options.get("patience", 0)
            if patience > 0:
                return
            dist.barrier()
        """,
        [],
    ),
    "who continues comes back": (
        "DL101",
        """
        def f():
            while True:
                if dist.get_rank() == 0:
                    prompt = input()
                    if not prompt:
                        continue
                dist.barrier()
        """,
        [],
    ),
    "who continues in a bounded loop is one behind": (
        "DL101",
        """
        def f(prompts):
            for prompt in prompts:
                if dist.get_rank() == 0:
                    continue
                dist.barrier()
        """,
        ["sure"],
    ),
    "a flag that both arms make alike": (
        "DL108",
        """
        def f(samples):
            if dist.get_rank() == 0:
                stop = train(samples)
            else:
                stop = train(samples)
            if stop:
                dist.barrier()
        """,
        ["review"],
    ),
    "what ranks may have agreed on": (
        "DL103",
        """
        from lightning.pytorch import LightningModule

        def fits(size):
            sizes = share(size)
            dist.barrier()
            return all(size == each for each in sizes)

        class Model(LightningModule):
            def training_step(self, batch, batch_idx):
                if not fits(batch.sum()):
                    return
                dist.barrier()
        """,
        ["review"],
    ),
    "a loss of the batch": (
        "DL103",
        """
        from lightning.pytorch import LightningModule

        class Model(LightningModule):
            def training_step(self, batch, batch_idx):
                if batch.sum() > 3:
                    dist.barrier()
        """,
        ["sure"],
    ),
    "a mesh that is given or not": (
        "DL103",
        """
        from torch.distributed import DeviceMesh

        class Gate(torch.nn.Module):
            def forward(self, x, mesh: DeviceMesh | None):
                if mesh is not None:
                    dist.all_reduce(x)
                return x
        """,
        [],
    ),
    "files in the order of the disk": (
        "DL105",
        """
        def f(folder):
            for file in os.listdir(folder):
                dist.broadcast(load(file), 0)
        """,
        ["review"],
    ),
    "a reduction of a signal, after another": (
        "DL212",
        """
        def f():
            buffer = torch.ones(64)
            dist.all_reduce(buffer)
            dist.all_reduce(buffer)
        """,
        [],
    ),
    "the rank in a group": (
        "DL214",
        """
        def f(context, data):
            rank = context.get_local_rank(context.tensor)
            return data[rank :: dist.get_world_size()]
        """,
        [],
    ),
    "an unseen call's rank": (
        "DL214",
        """
        def f(data):
            local_rank = rank_in_sequence()
            return data[local_rank :: dist.get_world_size()]
        """,
        [],
    ),
    "a log that denies other ranks": (
        "DL102",
        """
        from lightning.pytorch import LightningModule

        class Model(LightningModule):
            def on_train_epoch_end(self):
                if self.trainer.is_global_zero:
                    self.log("load", 1.0, sync_dist=False, on_epoch=False)
                    self.log("heat", 2.0, sync_dist=False)
        """,
        ["review"],
    ),
    "a loss that is a root": (
        "DL201",
        """
        from lightning.pytorch import LightningModule

        class Model(LightningModule):
            def training_step(self, batch, batch_idx):
                loss = torch.nn.functional.mse_loss(self(batch), batch).sqrt()
                self.log("loss", loss, sync_dist=True)
                return loss
        """,
        [],
    ),
    "a tensor that holds nothing": (
        "DL002",
        """
        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.cat([x, torch.empty([0])])
        """,
        [],
    ),
}


@pytest.mark.parametrize(("code", "source", "expected"), CASES.values(), ids=list(CASES))
def test_what_the_code_proves(code: str, source: str, expected: list[str]) -> None:
    program = START + textwrap.dedent(source)
    found = check_source(program.encode(), "program.py", [RULES[code]])
    assert [each.confidence for each in found] == expected
