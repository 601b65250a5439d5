"""The guard, its errors, the commands."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys

from tests.acceptance.mutants import mutant, patch

ENDS = "test_guard.py::test_a_rank_that_ends_is_named_by_all_others_in_every_later_call"
LATE = "test_guard.py::test_a_late_rank_is_told_with_its_line_and_an_error_at_the_deadline"
DIFFER = "test_guard.py::test_calls_that_differ_are_one_error_on_every_rank_and_no_data_moves"
MODE = "test_guard.py::test_the_mode_decides_about_equal_calls_of_other_lines"
CANNOT = "test_commands.py::test_what_cannot_run_exits_with_2_and_says_why"
DOCTOR = "test_commands.py::test_doctor_checks_a_machine_or_a_job"


@mutant(ENDS)
def lost_ranks_are_not_attributes() -> None:
    """An error about ranks has no ``peers``."""
    from distmetrics.errors import DistmetricsError

    def make(original):
        def broken(self, *args, **values):
            original(self, *args, **{**values, "peers": ()})

        return broken

    patch(DistmetricsError, "__init__", make)


@mutant(ENDS, LATE)
def errors_leave_out_the_ranks_lines() -> None:
    """The text of an error has no line for each rank."""
    from distmetrics.errors import DistmetricsError

    patch(DistmetricsError, "__str__", lambda original: lambda self: self.what)


@mutant(ENDS)
def places_name_the_next_line() -> None:
    """A place in the user's code is one line too far down."""
    from distmetrics.errors import Site

    def make(original):
        return lambda self: original(self._replace(line=self.line + 1))

    patch(Site, "__str__", make)


@mutant("test_commands.py::test_errors_have_one_shape_and_say_who_where_and_what_to_do")
def ranks_are_listed_one_by_one() -> None:
    """``rank_ranges`` writes each rank, and no ranges."""
    from distmetrics import errors

    patch(errors, "rank_ranges", lambda original: lambda ranks: ", ".join(map(str, sorted(ranks))))


@mutant(LATE)
def a_block_of_settings_forgets_the_deadline() -> None:
    """``use_settings`` ignores ``timeout``."""
    from distmetrics import guard

    def make(original):
        return lambda **options: original(**{**options, "timeout": None})

    patch(guard, "use_settings", make)


@mutant("test_guard.py::test_a_stage_of_a_pipeline_that_waits_for_a_slow_one_is_not_blamed")
def counts_of_sends_are_proof() -> None:
    """Ranks that hold each other up need not confirm it."""
    from distmetrics.guard.decision import JobSnapshot

    JobSnapshot._are_confirmed = True


@mutant("test_known_faults.py::test_a_rank_that_never_called_is_found")
def a_process_group_begins_no_guard() -> None:
    """A rank is guarded from its first call on."""
    from distmetrics.guard import watchdog

    for module in [*sys.modules.values()]:
        where = getattr(module, "__dict__", {})
        if where.get("init_process_group") is watchdog._init_and_guard:
            where["init_process_group"] = watchdog._init_process_group


@mutant(MODE)
def strict_is_on() -> None:
    """``DISTMETRICS_GUARD=strict`` refuses no more than ``on``."""
    from distmetrics.guard import Settings

    def make(original):
        def broken(self, mode="on", *rest, **others):
            original(self, "on" if mode == "strict" else mode, *rest, **others)

        return broken

    patch(Settings, "__init__", make)


@mutant(DIFFER)
def epochs_are_not_compared() -> None:
    """``guarded_epoch`` compares nothing at its end."""
    from distmetrics import guard

    def make(original):
        return lambda *args, **options: contextlib.nullcontext()

    patch(guard, "guarded_epoch", make)


@mutant(DIFFER)
def watch_leaves_out_reductions() -> None:
    """``watch`` compares no ``all_reduce``."""
    import torch.distributed as dist

    from distmetrics import guard

    def make(original):
        @contextlib.contextmanager
        def broken():
            plain = dist.all_reduce
            with original():
                dist.all_reduce = plain
                yield

        return broken

    patch(guard, "watch", make)


@mutant("test_guard.py::test_watched_collectives_return_what_they_should_and_are_put_back")
def watch_puts_nothing_back() -> None:
    """After a block of ``watch`` that raises, ``all_reduce`` is still replaced."""
    import torch.distributed as dist

    from distmetrics import guard

    def make(original):
        @contextlib.contextmanager
        def broken():
            try:
                with original():
                    watched = dist.all_reduce
                    yield
            except ValueError:
                dist.all_reduce = watched
                raise

        return broken

    patch(guard, "watch", make)


@mutant(
    "test_commands.py::test_what_cannot_be_pickled_is_named_by_its_path_with_its_line_and_what_to_do"
)
def only_the_first_part_is_found() -> None:
    """``find_unpicklable`` stops at the first part that is to blame."""
    import distmetrics

    def make(original):
        return lambda *args, **options: original(*args, **options)[:1]

    patch(distmetrics, "find_unpicklable", make)


@mutant("test_commands.py::test_each_rank_leaves_a_file_of_its_owner_with_its_last_50_calls")
def reports_are_open_to_all() -> None:
    """The files of the ranks can be read by everybody."""

    def make(original):
        def broken(path, flags, *args, **options):
            number = original(path, flags, *args, **options)
            if "rank-" in str(path) and flags & os.O_CREAT:
                os.fchmod(number, 0o644)
            return number

        return broken

    patch(os, "open", make)


@mutant(
    "test_commands.py::test_a_job_of_torchrun_ends_and_its_postmortem_blames_the_rank_that_raised"
)
def the_folder_for_reports_is_ignored() -> None:
    """``DISTMETRICS_REPORT`` has no effect."""
    os.environ.pop("DISTMETRICS_REPORT", None)


@mutant(LATE)
def the_log_is_silent() -> None:
    """Before the deadline, and under ``warn``, the log says nothing."""
    logging.disable(logging.WARNING)


def after(command: str, code: int | None = None, was: str = "", becomes: str = "") -> None:
    """Let a command of ``python -m distmetrics`` exit with a code, or print another text."""
    from distmetrics import cli

    def make(original):
        def broken(*args):
            if command not in sys.argv:
                return original(*args)
            if code is not None:
                return original(*args) and code
            with contextlib.redirect_stdout(io.StringIO()) as said:
                right = original(*args)
            sys.stdout.write(re.sub(was, becomes, said.getvalue()))
            return right

        return broken

    patch(cli, "main", make)


@mutant(CANNOT)
def a_postmortem_without_files_is_fine() -> None:
    """``postmortem`` exits with 0 where it has nothing to read."""
    after("postmortem", code=0)


@mutant("test_commands.py::test_a_postmortem_finds_where_the_ranks_part")
def a_postmortem_forgets_who_did_not_come() -> None:
    """``postmortem --json`` names no rank that did not come."""
    after("postmortem", was=r"(?<=.absent.: )\[[^]]*]", becomes="[]")


@mutant(DOCTOR)
def a_check_that_fails_is_fine() -> None:
    """``doctor`` exits with 0 where a check fails."""
    after("doctor", code=0)


@mutant(DOCTOR)
def the_doctor_measures_nothing() -> None:
    """``doctor --json`` has a latency of 0."""
    after("doctor", was=r"(?<=.median_s.: )[^,]*", becomes="0")
