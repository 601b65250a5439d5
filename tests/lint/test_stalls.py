"""What each training step waits for only to log a number, and that the advice names what to do."""

from __future__ import annotations

import pytest

from tests.lint.helpers import check

STEP = """\
import torch.distributed as dist
import wandb
from accelerate import Accelerator

def train(accelerator: Accelerator, model, loader, optimizer, rank, bar, limit):
    for step, batch in enumerate(loader):
        if step == limit:
            break
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            shown = loss.detach().clone()
            {line}
            {after}
"""
ALL = {
    "gather": ("mean = accelerator.gather(loss).mean().item()", "accelerator.log({'loss': mean}, step=step)"),
    "gather, in place": ("accelerator.print(accelerator.gather(loss).mean())", "pass"),
    "gather_for_metrics": ("mean = accelerator.gather_for_metrics(loss).mean()", "bar.set_postfix(loss=mean)"),
    "reduce": ("mean = accelerator.reduce(loss, reduction='mean')", "wandb.log({'loss': mean})"),
    "on the main process": ("mean = accelerator.reduce(loss)", "if rank == 0: wandb.log({'loss': mean})"),
    "plain torch": ("dist.all_reduce(shown)", "wandb.log({'loss': shown})"),
    "plain torch, rank 0 alone": ("dist.all_reduce(shown)", "if rank == 0: print(shown)"),
}
NOTHING = {
    "each tenth step": ("if step % 10 == 0: accelerator.print(accelerator.gather(loss).mean())", "pass"),
    "it is read": ("mean = accelerator.gather(loss).mean()", "optimizer.scale(mean)"),
    "a log of a window": (
        "log.mean('loss', shown, weight=rank)",
        "if step % 10 == 0: wandb.log(log.flush())",
    ),
}


@pytest.mark.parametrize(("line", "after"), ALL.values(), ids=ALL)
def test_a_wait_of_each_step_is_sure(line: str, after: str) -> None:
    found = [each for each in check(STEP.format(line=line, after=after), "DL304") if each.condition is None]
    assert [each.line for each in found] == [14]
    assert "distmetrics.Log" in found[0].message


@pytest.mark.parametrize(("line", "after"), NOTHING.values(), ids=NOTHING)
def test_no_step_waits(line: str, after: str) -> None:
    assert check(STEP.format(line=line, after=after), "DL304") == []
