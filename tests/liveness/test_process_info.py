"""Where a thread is, as others are told."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch.nn.parallel.distributed as wrapper
from torch.autograd import graph

from distmetrics.liveness.process_info import Inside, Place, place_of


def _frame(file: str, **local: object) -> Any:
    code = SimpleNamespace(co_filename=file, co_name="f")
    return SimpleNamespace(f_code=code, f_locals=local, f_lineno=3, f_back=None)


def test_a_backward_pass_that_no_frame_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it is in it, also where that ends in an exception; other threads say nothing of it."""
    me = threading.get_ident()
    frames = dict.fromkeys((me, me + 1), _frame(graph.__file__))
    monkeypatch.setattr("sys._current_frames", lambda: frames)
    with Inside("the backward pass", "world"):
        assert (place_of(me).doing, place_of(me).group) == ("the backward pass", "world")
        assert place_of(me + 1).group == ""
    assert place_of(me).doing == place_of(me).group == ""
    with pytest.raises(KeyError), Inside("the backward pass", "world"):
        raise KeyError
    assert place_of(me).doing == ""


def test_a_hook_of_a_backward_pass_is_code_of_the_users() -> None:
    """It may take as long as it likes: the pass waits for nobody meanwhile."""
    with Inside("the backward pass", "world"):
        place = place_of(threading.get_ident())
    assert place.doing == place.group == ""
    assert str(place).startswith("is at tests/liveness/test_process_info.py:")


def test_a_thread_without_code_of_the_users() -> None:
    assert str(Place(None)) == "is in no code of the user's"
    place = Place(None)
    place.doing = "the backward pass"
    assert str(place) == "is in the backward pass"


@pytest.mark.parametrize(("file", "doing"), [(wrapper.__file__, "DistributedDataParallel, before the"), (__file__, "")])
def test_a_wrapper_that_makes_the_ranks_alike(file: str, doing: str) -> None:
    """Its own code, not what it calls: the model's forward may take as long as it likes."""
    model = SimpleNamespace(process_group=SimpleNamespace(group_name="7"))
    place = Place(_frame(file, self=model))
    assert place.doing.startswith(doing)
    assert place.group == ("7" if doing else "")
