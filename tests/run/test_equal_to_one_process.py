"""The claim: what is logged, and what is learnt, does not depend on the number of ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run.models import Logistic, Streamed, loader
from tests.run.threads import trainer


def values(run):
    found = {name: float(value) for name, value in run.callback_metrics.items()}
    return {name: value for name, value in found.items() if name != "train_loss_step"}


@settings(max_examples=25)
@given(st.integers(2, 4), st.integers(2, 11), st.integers(1, 4), st.integers(1, 4))
def test_evaluation(world_size, count, one_batch, many_batch):
    alone, many = trainer(), trainer(world_size)
    (expected,) = alone.validate(Logistic(), loader(count, one_batch))
    (found,) = many.validate(Logistic(), loader(count, many_batch))
    assert found == pytest.approx(expected, rel=1e-6)
    assert found["val_count"] == count
    assert values(many) == pytest.approx(values(alone), rel=1e-6)


A, B, C, D = (tuple(part[:3] for part in batch) for batch in loader(16, 4))


class PerRank(Logistic):
    """A module that brings its own loader, which differs between ranks."""

    def __init__(self, plan):
        super().__init__()
        self.plan = plan

    def train_dataloader(self):
        return self.plan[self.global_rank % len(self.plan)]


def uneven(*plan, **flags):
    module = PerRank(plan)
    run = trainer(len(plan), use_distributed_sampler=False, **{"max_epochs": 2} | flags)
    run.fit(module)
    return module, run


@pytest.mark.parametrize("kind", [list, Streamed])
@pytest.mark.parametrize(
    ("first", "second", "flags"),
    [
        ([A, B, C], [D], {}),
        ([A, B, C], [D], {"accumulate_grad_batches": 2}),
        ([A, B], [], {}),
        ([A, B, C], [], {"max_epochs": None, "max_steps": 5}),
    ],
)
def test_uneven_training_steps(kind, first, second, flags):
    together = tuple(map(torch.cat, zip(first[0], second[0], strict=True))) if second else first[0]
    found = uneven(kind(first), kind(second), **flags)
    (module, run), (wanted, alone) = found, uneven(kind([together, *first[1:]]), **flags)
    assert values(run) == pytest.approx(values(alone), rel=1e-6)
    assert run.local_metrics == {"train_loss_step"}
    assert (run.current_epoch, run.global_step) == (alone.current_epoch, alone.global_step)
    torch.testing.assert_close(module.state_dict(), wanted.state_dict(), rtol=1e-6, atol=1e-7)
