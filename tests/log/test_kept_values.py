"""Values wait to be added up: what happens to them meanwhile, and where they were made."""

from __future__ import annotations

import torch

import distmetrics as dm


def test_values_are_added_up_in_inference_mode_and_after_it() -> None:
    log, x = dm.Log(), torch.ones(())
    rows = []
    for steps in (1024, 1):
        with torch.inference_mode():
            for _ in range(steps):
                log.sum("alone", x * 2)
                log.mean({"a": x * 2, "b": x}, weight=x)
            log.state_dict()
        log.sum("alone", x)
        log.max("new", x)
        rows.append(log.flush())
    assert rows == [{"a": 2.0, "b": 1.0, "alone": 2.0 * steps + 1, "new": 1.0} for steps in (1024, 1)]
