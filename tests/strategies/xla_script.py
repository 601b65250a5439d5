"""Compare XLA with one process, by hand: ``python -m tests.strategies.xla_script [one | spmd | processes] [runner]``.

It needs an environment with torch_xla and the torch that it names. ``PJRT_DEVICE=CPU`` is set here; for SPMD
there are four virtual devices. "processes" starts a process for each device; of the CPU there is one. With "runner"
the loop is a runner's.
"""

from __future__ import annotations

import os
import sys


def runner(how):
    from torch.utils.data import DataLoader

    from distmetrics.strategies import XLA
    from tests.acceptance.test_runner import Loop, plain, same, samples

    weights, numbers = plain(DataLoader(samples(24), 12), clip=0.05)
    expected = {name: value for name, value in numbers.items() if "short" not in name}
    same([Loop(strategy=XLA(spmd=how == "spmd"), devices=1).run()], (weights, expected), 2e-6)
    print(f"runner, xla {how}: weights and metrics as in a plain loop")


def main(how, what="trainer"):
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    if how == "spmd":
        os.environ.setdefault("CPU_NUM_DEVICES", "4")
    import torch_xla

    if what == "runner":
        runner(how)
        return
    from distmetrics.strategies import XLA
    from tests.strategies.common import assert_same, outcome, single, train

    module, trainer = train(XLA(spmd=how == "spmd"), -1 if how == "processes" else 1)
    expected = outcome(*single())
    if how != "processes":
        torch_xla.sync()
        assert next(module.parameters()).device.type == "xla"
    assert_same(outcome(module.cpu(), trainer), expected, atol=2e-6, rel=2e-6)
    print(f"xla {how}: weights and logged values as in one process, on {torch_xla.device_count()} device(s)")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["one"]))
