"""The linter: by its arguments, its output and the files that it reads and leaves."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from tests.acceptance.mutants import mutant, patch

FAULTS = "test_lint_rules.py::test_each_fault_is_reported_at_its_line_and_nothing_else"
FIX = "test_lint_rules.py::test_fix_mends_what_is_safe_to_mend_and_a_second_run_changes_nothing"
DIFF = "test_lint_rules.py::test_unsafe_fixes_and_diff_are_asked_for"
MISUSE = "test_lint_commands.py::test_misuse_exits_2_and_is_named"
BROKEN = "test_lint_commands.py::test_a_file_that_cannot_be_read_is_told_and_the_rest_is_checked"
COMMENT = "test_lint_commands.py::test_a_comment_silences_the_codes_that_it_names"
ADDED = (
    "test_lint_commands.py::test_comments_that_ignore_nothing_are_removed_and_missing_ones_added"
)
BASELINE = "test_lint_commands.py::test_a_baseline_lets_only_new_findings_fail"
PEOPLE = "test_lint_commands.py::test_reports_for_people_and_exit_statuses"
REPORTS = "test_lint_commands.py::test_reports_for_programs"
NOTEBOOK = "test_lint_commands.py::test_notebooks_are_told_and_fixed_by_cell"
CHOSEN = "test_lint_commands.py::test_findings_are_chosen_by_code_and_by_path"
NEAREST = "test_lint_commands.py::test_settings_are_those_of_the_nearest_file_and_can_be_shown"
OWN = "test_lint_commands.py::test_settings_name_functions_of_ones_own"
DEVICES = "test_lint_commands.py::test_what_needs_several_devices_is_told_where_there_are_some"
BASES = "test_lint_commands.py::test_bases_are_followed_into_other_files_and_settings"
TESTS = "test_lint_commands.py::test_tests_are_told_of_dl1_and_dl2_alone"
INPUT = "test_lint_commands.py::test_standard_input_is_checked_and_fixed"
CACHE = "test_lint_commands.py::test_the_cache_finds_the_same_and_is_all_that_is_written"
SERVER = "test_lint_commands.py::test_the_language_server_tells_findings_pages_and_ignores"
RULES = "test_lint_commands.py::test_rules_and_explain_print_every_rule"
HOOK = "test_lint_commands.py::test_the_hook_and_the_action_call_the_command_as_it_is"
PLACES = "test_lint_projects.py::test_facts_of_code_and_settings_are_told_with_their_places"
WAITING = "test_lint_projects.py::test_what_waits_for_several_devices_is_counted_in_the_last_line"
GONE = "test_lint_projects.py::test_a_retired_code_is_told_and_is_no_error"
NEWER = "test_lint_projects.py::test_newer_syntax_than_the_hosts_is_read"
Run = Callable[[list[str]], int]


def runs(change: Callable[[Run, list[str]], int]) -> None:
    """Let ``change`` do what a command does, by the real one."""
    import distlint.cli

    def make(original):
        return lambda argv=None: change(original, [*(sys.argv[1:] if argv is None else argv)])

    patch(distlint.cli, "main", make)


def asks(change: Callable[[list[str]], list[str]]) -> None:
    """Run with other arguments."""
    runs(lambda run, words: run(change(words)))


def tells(change: Callable[[str], str]) -> None:
    """Print another text, and write it into a file that is asked for."""

    def changed(run: Run, words: list[str]) -> int:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            status = run(words)
        sys.stdout.write(change(out.getvalue()))
        for name in words[-1:] if "--output-file" in words else ():
            Path(name).write_text(change(Path(name).read_text()))
        return status

    runs(changed)


def tells_findings(change: Callable[[list[dict[str, object]]], list[dict[str, object]]]) -> None:
    """Print other findings where JSON is asked for."""

    def changed(text: str) -> str:
        return json.dumps(change(json.loads(text))) if text.startswith("[\n {") else text

    tells(changed)


def reads(name: str, change: Callable[[str], str]) -> None:
    """Run over other files of a name, and put them back."""

    def changed(run: Run, words: list[str]) -> int:
        texts = {path: path.read_text() for path in Path().rglob(name)}
        for path, text in texts.items():
            path.write_text(change(text))
        try:
            return run(words)
        finally:
            for path, text in texts.items():
                path.write_text(text)

    runs(changed)


def without(*options: str) -> None:
    """Take no notice of options."""
    asks(lambda words: [word for word in words if word not in options])


@mutant(FAULTS)
def one_rule_is_off() -> None:
    """DL202 is never reported."""
    asks(lambda words: [*words, "--ignore", "DL202"])


@mutant(FAULTS)
def lines_count_from_0() -> None:
    """The lines of findings count from 0."""
    tells_findings(lambda found: [{**each, "line": int(str(each["line"])) - 1} for each in found])


@mutant(FAULTS)
def the_line_after_a_fault_is_reported_too() -> None:
    """What stands below the last fault is reported, though it is right."""
    tells_findings(lambda found: [*found, {**found[-1], "line": int(str(found[-1]["line"])) + 1}])


@mutant(FIX)
def fix_drops_comments() -> None:
    """``--fix`` leaves no comments in the file."""

    def fixed(run: Run, words: list[str]) -> int:
        status = run(words)
        for path in Path().rglob("*.py") if "--fix" in words else ():
            path.write_text(re.sub("  # .*", "", path.read_text()))
        return status

    runs(fixed)


@mutant(FIX)
def fix_mends_no_buffers() -> None:
    """``--fix`` leaves the tensors of DL003 as they are."""
    asks(lambda words: [*words, "--ignore", "DL003"] if "--fix" in words else words)


@mutant(DIFF)
def diff_changes_the_file() -> None:
    """``--diff`` prints the patch, and applies it as well."""

    def applied(run: Run, words: list[str]) -> int:
        status = run(words)
        if "--diff" in words:
            with contextlib.redirect_stdout(io.StringIO()):
                run(["--fix" if word == "--diff" else word for word in words])
        return status

    runs(applied)


@mutant(DIFF)
def unsafe_fixes_are_not_applied() -> None:
    """``--unsafe-fixes`` does nothing."""
    without("--unsafe-fixes")


@mutant(MISUSE)
def misuse_exits_with_1() -> None:
    """A wrong path or code exits with 1, as findings do."""
    runs(lambda run, words: min(run(words), 1))


@mutant(BROKEN)
def a_broken_file_ends_the_run() -> None:
    """Nothing is told but the files that cannot be read, where there are some."""
    tells_findings(lambda found: [each for each in found if each["code"] == "DL000"] or found)


@mutant(COMMENT)
def a_comment_ignores_all_codes() -> None:
    """The codes in a comment are not looked at: it ignores everything."""
    reads("*.py", lambda text: re.sub(r"ignore\[.*?\]", "ignore", text))


@mutant(ADDED)
def ignores_are_added_again() -> None:
    """A second ``--add-ignores`` adds a second comment."""

    def added(run: Run, words: list[str]) -> int:
        path = Path("main.py")
        if "--add-ignores" in words:
            path.write_text(path.read_text().replace("# distlint", "# once more  # distlint"))
        return run(words)

    runs(added)


@mutant(BASELINE)
def a_known_file_is_not_looked_at() -> None:
    """With a baseline, nothing is told of a file that has a known finding twice."""
    asks(lambda words: [*words, "--exclude", "twice.py"] if "--baseline" in words else words)


@mutant(BASELINE)
def the_baseline_is_not_written() -> None:
    """``--write-baseline`` leaves an older file as it was."""

    def kept(run: Run, words: list[str]) -> int:
        known = Path("known.json")
        before = known.read_text() if known.exists() else None
        status = run(words)
        if before is not None:
            known.write_text(before)
        return status

    runs(kept)


@mutant(PEOPLE)
def findings_exit_with_0() -> None:
    """Findings do not fail the run."""
    runs(lambda run, words: 0 if (status := run(words)) == 1 else status)


@mutant(REPORTS)
def sarif_counts_lines_from_0() -> None:
    """The lines of SARIF are one too low."""
    tells(lambda text: text.replace('"startLine": 5', '"startLine": 4'))


@mutant(NOTEBOOK)
def cells_of_text_are_not_counted() -> None:
    """The cells of notebooks are told one too low."""
    tells_findings(lambda found: [{**each, "cell": int(str(each["cell"])) - 1} for each in found])


@mutant(CHOSEN)
def named_files_are_never_excluded() -> None:
    """``--force-exclude`` does nothing."""
    without("--force-exclude")


@mutant(CHOSEN, OWN)
def settings_are_not_read() -> None:
    """``pyproject.toml`` counts for nothing."""
    asks(lambda words: words if "--config" in words else [*words, "--isolated"])


@mutant(NEAREST)
def the_outermost_settings_count() -> None:
    """The settings are those of the current folder, whatever is checked."""
    asks(lambda words: [*words, "--config", "pyproject.toml"])


@mutant(DEVICES)
def every_module_is_taken_for_many_devices() -> None:
    """What needs several devices is reported where nothing says that there are."""
    reads("pyproject.toml", lambda text: text if "devices" in text else f'{text}devices = "many"')


@mutant(BASES)
def bases_in_other_files_are_unknown() -> None:
    """A class of another file tells nothing of those that are derived from it."""
    reads("mine.py", lambda text: text.replace("(LightningModule)", ""))


@mutant(TESTS)
def tests_are_not_checked() -> None:
    """Nothing is reported in tests."""
    asks(lambda words: [*words, "--extend-exclude", "tests"])


@mutant(INPUT)
def standard_input_has_no_name() -> None:
    """``--stdin-filename`` does nothing."""
    asks(lambda words: words[:2] if "--stdin-filename" in words else words)


@mutant(CACHE)
def the_cache_is_never_renewed() -> None:
    """What was found in a file is told again after what it depends on has changed."""

    def cached(run: Run, words: list[str]) -> int:
        kept = Path(".distlint_cache") / "first.json"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            run(words)
        text = kept.read_text() if kept.exists() else out.getvalue()
        if kept.parent.exists():
            kept.write_text(text)
        sys.stdout.write(text)
        return int("DL" in text)

    runs(cached)


@mutant(SERVER)
def the_server_passes_over_its_options() -> None:
    """The language server does not read ``initializationOptions``."""

    def served(run: Run, words: list[str]) -> int:
        given = sys.stdin.buffer.read()
        given = given.replace(b"initializationOptions", b"initialisationOptions")
        read, write = os.pipe()
        os.write(write, given)
        os.close(write)
        os.dup2(read, 0)
        return run(words)

    runs(lambda run, words: served(run, words) if words == ["server"] else run(words))


@mutant(RULES)
def explain_prints_one_page() -> None:
    """``explain`` prints the first of the pages that are asked for."""
    asks(lambda words: words[:2] if words[0] == "explain" else words)


@mutant(RULES)
def a_rule_is_not_listed() -> None:
    """``rules`` leaves out DL301."""
    tells(lambda text: re.sub("(?m)^DL301.*\n", "", text))


@mutant(HOOK)
def exit_zero_fails() -> None:
    """``--exit-zero`` does nothing."""
    without("--exit-zero")


@mutant(PLACES)
def comments_count_as_facts() -> None:
    """What stands in a comment of the settings is a fact."""
    reads("*.yaml", lambda text: text.replace("# ", ""))


@mutant(WAITING)
def what_waits_is_not_counted() -> None:
    """The last line says nothing of the findings that wait for several devices."""

    def silent(run: Run, words: list[str]) -> int:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            status = run(words)
        sys.stderr.write(re.sub(".*devices = .*\n", "", said.getvalue()))
        return status

    runs(silent)


@mutant(GONE)
def a_retired_code_is_an_error() -> None:
    """Settings that name a retired code end with exit status 2."""
    reads("pyproject.toml", lambda text: text.replace("DL107", "DL997"))


@mutant(NEWER)
def newer_syntax_is_an_error() -> None:
    """A file that this Python cannot compile is told as one that cannot be read."""

    def compiled(run: Run, words: list[str]) -> int:
        for path in Path().rglob("job.py"):
            try:
                compile(path.read_text(), str(path), "exec")
            except SyntaxError:
                path.write_text("def f(:\n")
        return run(words)

    runs(compiled)
