"""Compare XLA with one process, by hand: ``python -m tests.strategies.xla_script [one | spmd | processes]``.

It needs an environment with torch_xla and the torch that it names. ``PJRT_DEVICE=CPU`` is set here; for SPMD
there are four virtual devices. "processes" starts a process for each device; of the CPU there is one.
"""

from __future__ import annotations

import os
import sys


def main(how):
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    if how == "spmd":
        os.environ.setdefault("CPU_NUM_DEVICES", "4")
    import torch_xla

    from distmetrics.strategies.xla import XLA
    from tests.strategies.common import assert_same, outcome, single, train

    module, trainer = train(XLA(spmd=how == "spmd"), -1 if how == "processes" else 1)
    expected = outcome(*single())
    if how != "processes":
        torch_xla.sync()
        assert next(module.parameters()).device.type == "xla"
    assert_same(outcome(module.cpu(), trainer), expected, atol=2e-6, rel=2e-6)
    print(f"xla {how}: weights and logged values as in one process, on {torch_xla.device_count()} device(s)")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "one")
