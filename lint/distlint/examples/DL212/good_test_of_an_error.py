import pytest
import torch
from accelerate.utils import gather, pad_across_processes


def test_shapes_must_match(state):
    data = {"tensor": torch.rand(state.process_index + 1)}
    with pytest.raises(RuntimeError):
        gather(data)
    with pytest.raises(RuntimeError):
        pad_across_processes(data, dim=0)
