"""Where a thread is, as others are told."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch.nn.parallel.distributed as wrapper

from distmetrics.comm.guard.places import Place, inside, place_of


def test_a_thread_says_what_no_frame_tells() -> None:
    """For as long as it is in it, also where that ends in an exception; other threads say nothing of it."""
    me = threading.get_ident()
    with inside("the backward pass", "world"):
        place = place_of(me)
        assert (place.doing, place.group) == ("the backward pass", "world")
        assert str(place).startswith("is in the backward pass  tests/comm/guard/test_places.py:")
        assert place_of(me + 1).group == ""
    assert place_of(me).doing == place_of(me).group == ""
    with pytest.raises(KeyError), inside("the backward pass", "world"):
        raise KeyError
    assert place_of(me).doing == ""


def test_a_thread_without_code_of_the_users() -> None:
    assert str(Place(None)) == "is in no code of the user's"
    place = Place(None)
    place.doing = "the backward pass"
    assert str(place) == "is in the backward pass"


@pytest.mark.parametrize(("file", "doing"), [(wrapper.__file__, "DistributedDataParallel, before the"), (__file__, "")])
def test_a_wrapper_that_makes_the_ranks_alike(file: str, doing: str) -> None:
    """Its own code, not what it calls: the model's forward may take as long as it likes."""
    code = SimpleNamespace(co_filename=file, co_name="_pre_forward")
    model = SimpleNamespace(process_group=SimpleNamespace(group_name="7"))
    frame = SimpleNamespace(f_code=code, f_locals={"self": model}, f_lineno=3, f_back=None)
    place = Place(frame)  # type: ignore[arg-type]
    assert place.doing.startswith(doing)
    assert place.group == ("7" if doing else "")
