"""What travels to other processes by value keeps the file and line that it was written in."""

from __future__ import annotations

import pickle
import traceback

import cloudpickle
import pytest

from distmetrics.launch.spawn import pickled, pickled_by_value


def sent(job):
    return pickle.loads(pickled_by_value(job))


def test_code_keeps_its_file_and_line():
    fails = lambda: 1 / 0  # noqa: E731
    with pytest.raises(ZeroDivisionError) as caught:
        pickle.loads(pickled(fails))()
    frame = traceback.extract_tb(caught.tb)[-1]
    assert (frame.filename, frame.line) == (__file__, "fails = lambda: 1 / 0  # noqa: E731")


def test_nested_code_keeps_its_file():
    def outer():
        def inner():
            return [lambda: None]

        return inner

    class Local:
        def method(self):
            """Has a file too."""

    inner = sent(outer)()
    assert {code.__code__.co_filename for code in (inner, inner()[0], sent(Local).method)} == {__file__}


def test_code_of_a_module_that_is_sent_by_value():
    import tests.launch.ranks as module

    cloudpickle.register_pickle_by_value(module)
    try:
        copied = sent(module.hello)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert copied is not module.hello
    assert copied.__code__ == module.hello.__code__
    assert copied.__code__.co_filename == module.__file__
