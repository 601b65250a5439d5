"""Whatever is given to the linter: the rules' examples as they are, and changed at random.

An example is a whole program with ``# expect: CODE part of the message``.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from functools import partial

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from distlint.check import check_source
from distlint.document import ignore_document
from distlint.facts import Facts, Project, scan
from distlint.fix import fix_source
from distlint.pages import EXAMPLES
from distlint.syntax import error_of
from distlint.text import Text
from tests.lint.helpers import ALL, MANY, RELAXED

FILES = sorted(EXAMPLES.glob("*/*.py"))
EXPECT = re.compile(r"\s*# expect: (DL\d+) ([^#\n]*)")
PROGRAMS = [EXPECT.sub("", path.read_text()) for path in FILES]


def facts_of(source):
    return Project({"m.py": scan(source, "m.py")}, Facts()).of("m.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_example_is_reported_as_it_says_and_its_fixes_keep_what_is_right(path):
    text = path.read_text()
    facts = facts_of(text)
    found = [each for each in check_source(text.encode(), "m.py", ALL, facts) if not each.waits]
    listed = enumerate(text.splitlines(), 1)
    wanted = [(number, match[1], match[2].strip()) for number, line in listed for match in EXPECT.finditer(line)]
    assert [(each.line, each.code) for each in found] == [(line, code) for line, code, _ in wanted], found
    for each, (_, _, said) in zip(found, wanted, strict=True):
        assert said in each.message
        assert len(each.message) <= 120
    is_bad = path.name.startswith("bad_")
    assert (path.parent.name in {each.code for each in found}) is is_bad
    if is_bad:
        check_fixes(EXPECT.sub("", text), facts)


# --- changed at random ----------------------------------------------------------------------------------------------

WORD = re.compile(r"\b[A-Za-z_]\w*\b")
WORDS = [word for word, _ in Counter(WORD.findall("\n".join(PROGRAMS))).most_common(150)]
LINES = """
if rank == 0:
if self.trainer.is_global_zero: return
dist.barrier()
self.log('val_loss', loss, sync_dist=True)
x = self.all_gather(x)
loss = x.mean()
x = 1  # distlint: ignore[DL101, DL202] why
with open(x) as y:
return
try:
else:
type X[T] = list[T]
async def f(rank): await g()"""
ENDS = ("x = 1  # a comment", "# distlint: ignore", '"""', "(", ")", "\x0c")


def change(lines, kind, at, word, line):
    """Change one line of a program."""
    if not lines:
        return
    at %= len(lines)
    old = lines[at]
    pad = old[: len(old) - len(old.lstrip())]
    words = list(WORD.finditer(old))
    match kind:
        case "delete":
            del lines[at]
        case "repeat" | "insert":
            lines.insert(at, old if kind == "repeat" else pad + line)
        case "indent":
            lines[at] = "    " + old
        case "guard":
            lines[at : at + 1] = [pad + "if rank == 0:", "    " + old]
        case "swap":
            lines[at : at + 2] = reversed(lines[at : at + 2])
        case "comment":
            lines[at] += f"  # {word}"
        case "word" if words:
            chosen = words[len(word) % len(words)]
            lines[at] = old[: chosen.start()] + word + old[chosen.end() :]


KINDS = ("delete", "repeat", "insert", "indent", "guard", "swap", "comment", "word", "word", "word")
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 200),
        st.sampled_from(WORDS),
        st.sampled_from([*LINES.split("\n"), *ENDS]),
    ),
    max_size=5,
)


def changed(programs, changes):
    lines = "\n".join(programs).split("\n")
    for each in changes:
        change(lines, *each)
    return "\n".join(lines)


SOURCES = st.builds(changed, st.lists(st.sampled_from(PROGRAMS), min_size=1, max_size=2), CHANGES)


@RELAXED
@given(SOURCES)
def test_findings_are_in_order_and_inside_and_the_prefilter_changes_nothing(source):
    facts = facts_of(source)
    found = check_source(source.encode(), "m.py", ALL, facts)
    assert found == check_source(source.encode(), "m.py", ALL, facts, prefilter=False)
    places = [(each.line, each.column, each.code) for each in found]
    assert places == sorted(places)
    lines = Text(source).lines or [""]
    for each in found:
        assert 1 <= each.line <= each.end_line <= len(lines)
        assert 1 <= each.column <= len(lines[each.line - 1]) + 1
        assert 1 <= each.end_column <= len(lines[each.end_line - 1]) + 1
        assert each.statement[0] <= each.end_line
        assert each.line <= each.statement[1] or each.statement[0] <= each.line
        assert "\n" not in each.message
        assert len(each.message) <= 120 or each.code in ("DL000", "DL900")
        assert all(1 <= step.line <= len(lines) for step in each.trace)
    kept = Counter(each for each in found if each.code not in ("DL000", "DL900"))
    single = [each for rule in ALL for each in check_source(source.encode(), "m.py", [rule], facts)]
    assert Counter(each for each in single if each.code not in ("DL000", "DL900")) == kept


def comments(source):
    """Return the comments of a program, but for those that a fix takes away on purpose."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kept = [each.string for each in tokens if each.type == tokenize.COMMENT]
    return Counter(each for each in kept if "distlint:" not in each)


def untouched(source, findings):
    """Return the lines outside of all that fixes of these findings change."""
    spans = [
        range(first, last + 1)
        for found in findings
        if found.fix is not None
        for first, last in [found.statement, *((e.line, e.end_line) for e in found.fix.edits)]
    ]
    listed = enumerate(Text(source).lines, 1)
    return [line for number, line in listed if not any(number in span for span in spans)]


def is_within(lines, others):
    left = iter(others)
    return all(line in left for line in lines)


def check_fixes(source, facts):
    check = partial(check_source, path="m.py", rules=ALL, facts=facts)
    before = check(source.encode())
    done = fix_source(source.encode(), check, unsafe=True)
    after = done.source.decode()
    assert error_of(after) is None
    allowed = Counter(each.code for each in before)
    rest = Counter(each.code for each in done.findings if each.code != "DL900")
    assert rest <= allowed
    assert done.findings == check(done.source)
    again = fix_source(done.source, check, unsafe=True)
    assert (again.source, again.applied) == (done.source, [])
    if not done.applied:
        assert after == source
    for found in before:
        if found.fix is None:
            continue
        once = Text(source).edited(found.fix.edits).text
        assert once != source
        if error_of(once) is None:
            assert is_within(untouched(source, [found]), Text(once).lines)
            if found.code != "DL900":
                assert comments(source) <= comments(once)


@RELAXED
@given(SOURCES)
def test_fixes_keep_what_is_right(source):
    assume(error_of(source) is None)
    assume("\x0c" not in source and "[T]" not in source)  # which this Python's tokens may not have
    check_fixes(source, MANY)


@RELAXED
@given(SOURCES)
def test_comments_that_ignore_hide_everything_and_are_added_once(source):
    assume(error_of(source) is None)
    rules = [rule for rule in ALL if rule.code() != "DL900"]
    findings = check_source(source.encode(), "m.py", rules, MANY)
    done = ignore_document(source.encode(), "m.py", rules, MANY, findings)
    assert len(done.findings) == len(done.undone)
    again = ignore_document(done.source, "m.py", rules, MANY, done.findings)
    assert again.source == done.source


@RELAXED
@given(SOURCES, st.sampled_from(("\r\n", "\r")), st.sampled_from(("", "\ufeff")))
def test_line_ends_and_marks_change_no_finding_and_no_fix(source, end, mark):
    check = partial(check_source, path="x.py", rules=ALL, facts=MANY)
    plain, other = source.encode(), (mark + source.replace("\n", end)).encode()
    found = check(plain)
    if [each.code for each in found] != ["DL000"]:
        places = [[(each.code, each.line, each.column) for each in check(data)] for data in (plain, other)]
        assert places[0] == places[1]
        if end == "\r\n" and "\x0c" not in source:
            fixed, windows = (fix_source(data, check, unsafe=True).source for data in (plain, other))
            assert windows == mark.encode() + fixed.replace(b"\n", b"\r\n")


@example("", 0, b"", "")
@RELAXED
@given(SOURCES, st.integers(0, 5000), st.binary(max_size=8), st.text(max_size=60))
def test_what_is_cut_or_damaged_is_at_most_a_finding(source, cut, noise, text):
    whole, other = source.encode(), text.encode("utf-8", "surrogatepass")
    for damaged in (whole[:cut], whole[cut:], whole[:cut] + noise + whole[cut:], noise, other):
        for found in check_source(damaged, "x.py", ALL, MANY, prefilter=False):
            assert found.line >= 1
        scan(damaged.decode("utf-8", "replace"), "x.py")
    for path in ("x.py", "x.yaml", "x.sh"):
        assert all(fact.line <= text.count("\n") + 1 for fact in scan(text, path).facts)
