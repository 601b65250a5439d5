"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("project", deadline=None)  # no test asserts a time; hangs are pytest-timeout's
settings.load_profile("project")
