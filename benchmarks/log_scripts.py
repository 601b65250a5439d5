"""Random scripts of a training log, on many ranks, against exact sums of rational numbers.

A script has names of every kind, ranks that log other names or nothing, windows of any length,
flushes in the background, logs that are saved and loaded in between, meshes with ``same`` and
``last`` axes, and faults: a name of two kinds, a ``same`` that is not, a negative weight, text.

    python -m benchmarks.log_scripts                     # writes results/log_scripts.json
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import distmetrics as dm
from benchmarks.common import arguments, write_json
from distmetrics.layouts.mesh import Mesh
from distmetrics.log.writers import numbers
from distmetrics.testing import outcomes, run

Verdict = tuple[str, list[str], Counter[str]]  # how it ended, what is wrong, what was compared
NUMBERS = ("mean", "sum", "max", "min", "same")
KINDS = (*NUMBERS, "std", "quantile", *(f"{kind}[3]" for kind in NUMBERS))  # and arrays
NAMES = ("loss", "min", "reward/min_max", "ü", "", "n" * 50, "loss_p50 ")
FAULTS = ("kinds", "own kinds", "same", "weight", "weight on a device", "text")
TOLERANCE = Fraction(1, 10**12)
LABELS = {"p50": 50, "p90": 90, "p99": 99}
LEAST, MOST = 1e-9, 6e8  # sizes of which a quantile is right to 1 %
MESHES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "dp 2 shard, tp 2 same": ({"dp": 2, "tp": 2}, {"dp": "shard", "tp": "same"}),
    "dp 2 shard, pp 2 last": ({"dp": 2, "pp": 2}, {"dp": "shard", "pp": "last"}),
    "pp 2 last, dp 2 shard, tp 2 same": (
        {"pp": 2, "dp": 2, "tp": 2},
        {"pp": "last", "dp": "shard", "tp": "same"},
    ),
}


class Call(NamedTuple):
    """What one shard logs: ``form`` is that of the value, "" for a number."""

    name: str
    value: float
    weight: float
    form: str


class Window(NamedTuple):
    """Calls by shard, how they are flushed, who saves and loads before, and a fault if any.

    ``grouping``: "weight" where the calls of a shard weigh the same, "form" where their values have
    one form too, and then calls of one kind that follow one another are made as one.
    """

    calls: list[list[Call]]
    grouping: str
    waits: bool
    reloading: list[int]
    fault: str


class Script(NamedTuple):
    """Ranks or a mesh, the kind of each name, and windows; ``own``: when ranks ask for results."""

    ranks: int
    mesh: str
    kinds: dict[str, str]
    windows: list[Window]
    own: int


_values = st.one_of(
    st.floats(-1e6, 1e6, allow_subnormal=False),
    st.integers(-5, 5).map(float),
    st.sampled_from([1e-7, -1e8, 0.1, 3e-5]),
)
_forms = st.sampled_from(["", "float64", "float32", "int64", "bfloat16", "one", "list"])
_weights = st.one_of(st.integers(0, 9).map(float), st.floats(1e-3, 1e6))


@st.composite
def scripts(draw: st.DrawFn, ranks: Sequence[int] = range(1, 9)) -> Script:
    """Draw a script."""
    size = draw(st.sampled_from(ranks))
    fitting = [name for name, (sizes, _) in MESHES.items() if math.prod(sizes.values()) == size]
    mesh = draw(st.sampled_from(["", *fitting]))
    shards = 2 if mesh else size
    kinds = {name: draw(st.sampled_from(KINDS)) for name in NAMES}
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    call = st.builds(Call, st.sampled_from(names), _values, _weights, _forms)
    window = st.builds(
        Window,
        st.lists(st.lists(call, max_size=6), min_size=shards, max_size=shards),
        st.sampled_from(["", "weight", "form"]),
        st.booleans(),
        st.lists(st.integers(0, shards - 1), max_size=2),
        st.sampled_from(["", "", "", "", *FAULTS]),
    )
    windows = draw(st.lists(window.map(alike), min_size=1, max_size=4))
    return Script(size, mesh, kinds, windows, draw(st.integers(0, 99)))


def alike(window: Window) -> Window:
    """Return the window with what its grouping asks for."""
    calls = window.calls
    if window.grouping:
        calls = [[call._replace(weight=each[0].weight) for call in each] for each in calls]
    if window.grouping == "form":
        calls = [[call._replace(form=each[0].form) for call in each] for each in calls]
    return window._replace(calls=calls)


def grouped(calls: Sequence[Call], kinds: Mapping[str, str]) -> list[list[Call]]:
    """Return calls that follow one another, of one kind and of different names, as groups."""
    groups: list[list[Call]] = []
    for call in calls:
        last = groups[-1] if groups else []
        is_new = call.name not in {each.name for each in last}
        if last and is_new and kinds[last[0].name] == kinds[call.name]:
            last.append(call)
        else:
            groups.append([call])
    return groups


def elements(value: float) -> list[float]:
    """Return the array that is logged for a value."""
    return [value, -value, 2 * value]


def shown(call: Call, kind: str) -> Any:
    """Return the value as it is logged: a number, an array, or samples."""
    is_samples = kind in ("std", "quantile") and call.form == "list"
    many = elements(call.value) if is_samples or kind.endswith("[3]") else [call.value]
    if call.form == "list":
        return many
    whole = torch.tensor(many, dtype=torch.float64)
    if call.form == "":
        return whole.numpy() if len(many) > 1 else call.value
    if call.form == "one":
        return whole.reshape(1, 1) if len(many) == 1 else whole
    whole = whole.to(getattr(torch, call.form))
    return whole if len(many) > 1 else whole[0]


def same_of(name: str) -> float:
    """Return the value that all ranks have of a name of the kind "same"."""
    return len(name) / 3


def can_fail(fault: str, shards: int) -> bool:
    """True if a world of so many shards has the fault."""
    return bool(fault) and (shards > 1 or fault not in ("kinds", "same"))


def exact(calls: Sequence[Call], kinds: Mapping[str, str]) -> dict[str, tuple[Any, Fraction]]:
    """Return the numbers that a row must have, and how far from it each may be."""
    by_name: dict[tuple[str, str], list[tuple[Fraction, Fraction]]] = defaultdict(list)
    for call in calls:
        kind, _, is_array = kinds[call.name].partition("[")
        logged = torch.as_tensor(shown(call, kinds[call.name]), dtype=torch.float64)
        for place, value in enumerate(logged.flatten().tolist()):
            name = f"{call.name}/{place}" if is_array else call.name
            if kind == "same":
                value = elements(same_of(call.name))[place]
            by_name[name, kind].append((Fraction(value), Fraction(call.weight)))
    row: dict[str, tuple[Any, Fraction]] = {}
    for (name, kind), pairs in by_name.items():
        values = [value for value, _ in pairs]
        if kind == "mean":
            total = sum(weight for _, weight in pairs)
            size = sum(abs(value) * weight for value, weight in pairs)
            mean = sum(value * weight for value, weight in pairs) / total if total else math.nan
            row[name] = mean, TOLERANCE * size / (total or 1)
        elif kind == "sum":
            row[name] = sum(values), TOLERANCE * sum(map(abs, values))
        elif kind == "std":
            row[name] = exact_std(pairs)
        elif kind == "same":
            row[name] = values[0], Fraction(0)
        elif kind == "quantile":
            row |= exact_quantiles(name, sorted(values))
        else:
            row[name] = (max(values) if kind == "max" else min(values)), Fraction(0)
    return row


def exact_std(pairs: Sequence[tuple[Fraction, Fraction]]) -> tuple[Any, Fraction]:
    """Return the standard deviation of weighed samples, right to what their mean loses."""
    total = sum(weight for _, weight in pairs)
    if total <= 1:
        return math.nan, Fraction(0)
    mean = sum(value * weight for value, weight in pairs) / total
    squares = sum(weight * (value - mean) ** 2 for value, weight in pairs)
    size = max(abs(value) for value, weight in pairs if weight)
    scale = Fraction(math.sqrt(total / (total - 1)))
    return Fraction(math.sqrt(squares / (total - 1))), TOLERANCE * size * scale


def exact_quantiles(name: str, ordered: Sequence[Fraction]) -> dict[str, tuple[Any, Fraction]]:
    """Return the order statistics: of n numbers, the one of which a share is at most as large."""
    row: dict[str, tuple[Any, Fraction]] = {f"{name}_max": (ordered[-1], Fraction(0))}
    for label, share in LABELS.items():
        value = ordered[max(0, -(-share * len(ordered) // 100) - 1)]
        slack = Fraction(10**6 + 1, 10**8) * abs(value) + (abs(value) < LEAST) * Fraction(LEAST)
        row[f"{name}_{label}"] = value, slack
    return row


def wrong_row(row: dict[str, Any], must: Mapping[str, tuple[Any, Fraction]]) -> str:
    """Return what is wrong with a row, or "" for a right one."""
    row = {name: value for name, value in numbers(row).items() if not name.startswith("odd ")}
    if row.keys() != must.keys():
        return f"names {sorted(row.keys() ^ must.keys())}"
    for name, (value, slack) in must.items():
        is_nan = isinstance(value, float)
        if is_nan != math.isnan(row[name]) or math.isinf(row[name]):
            return f"{name!r}: {row[name]} for {value}"
        if not is_nan and abs(Fraction(row[name]) - value) > slack:
            return f"{name!r}: {row[name]!r} for {float(value)!r}"
    return ""


def unnamed(text: Any, fault: str) -> str:
    """Return what an error does not say, or "" for one that says what is wrong and where."""
    if not isinstance(text, str):
        return f"no error for {fault}"
    parts = [f"'odd {fault}'", "log_scripts.py:"]
    return "".join(f" no {part} in {text}" for part in parts if part not in text)


def brief(row: Any) -> Any:
    """Return a row, or the class of an error: copies along "same" name ranks of their own."""
    return row.partition(":")[0] if isinstance(row, str) else row


def judge(
    script: Script, per_rank: Sequence[list[tuple[int, Any]]]
) -> tuple[list[str], Counter[str]]:
    """Return what is wrong with the results of all ranks, and how much was compared."""
    wrong, seen = [], Counter[str]()
    if len({repr([(place, brief(row)) for place, row in rows]) for rows in per_rank}) > 1:
        wrong.append("ranks differ")
    shards, kept = len(script.windows[0].calls), list[Call]()
    rows = dict(per_rank[0])
    for place in rows:
        window = script.windows[place] if place < len(script.windows) else None
        kept += [call for calls in window.calls for call in calls] if window else []
        if window and can_fail(window.fault, shards):
            seen["faults"] += 1
            said = unnamed(rows[place], window.fault)
        elif isinstance(rows[place], str):
            said = rows[place]
        else:
            must, kept = exact(kept, script.kinds), []
            seen["rows"] += 1
            seen["values"] += len(must)
            said = wrong_row(rows[place], must)
        wrong += [f"window {place}: {said}"] if said else []
    return wrong, seen


def note(log: dm.Log, calls: Sequence[Call], kind: str) -> None:
    """Log values of one kind, and of one weight: one by itself, several by their names."""
    options: dict[str, Any] = {}
    values = {call.name: shown(call, kind) for call in calls}
    name, value = next(iter(values.items()))
    if kind in ("mean", "mean[3]", "std"):
        is_tensor = calls[0].form in ("float64", "one")
        weight = calls[0].weight
        options["weight"] = torch.tensor(weight, dtype=torch.float64) if is_tensor else weight
        if all(call.form == "list" for call in calls):  # one weight of each element
            options["weight"] = [weight] * len(value)
    method = getattr(log, kind.partition("[")[0])
    if len(values) == 1:
        method(name, value, **options)
    else:
        method(values, **options)


def do_wrong(log: dm.Log, fault: str, shard: int, last: int) -> None:
    """Log what is wrong on the last shard, or between it and the first."""
    name = f"odd {fault}"
    if fault == "kinds" and shard in (0, last):
        (log.max if shard else log.min)(name, 1.0)
    if fault == "same" and shard in (0, last):
        log.same(name, shard)
    if shard != last:
        return
    if fault == "own kinds":
        log.sum(name, 1.0)
        log.max(name, 1.0)
    elif fault == "weight":
        log.mean(name, 1.0, weight=-1.0)
    elif fault == "weight on a device":
        log.mean(name, 1.0, weight=torch.tensor(math.nan))
    elif fault == "text":
        log.sum(name, "many")  # type: ignore[arg-type]


class Player:
    """One rank that plays a script."""

    def __init__(self, comm: Any, script: Script) -> None:
        self.rank, self.shards, self.shard = comm.rank, script.ranks, comm.rank
        self.comm, self.owns, self.script = comm, True, script
        if script.mesh:
            sizes, roles = MESHES[script.mesh]
            mesh = Mesh.of(sizes, roles)
            self.comm = dm.layout(sizes, comm=comm, **roles)
            self.shards, self.shard = 2, mesh.place(comm.rank)["dp"]
            self.owns = mesh.owns(comm.rank)
        self.log = dm.Log(self.comm)
        self.rows: dict[int, Any] = {}
        self.handles: dict[int, Any] = {}

    def play(self) -> list[tuple[int, Any]]:
        """Return what each window has given: its row, or the text of its error."""
        for place, window in enumerate(self.script.windows):
            self._note(window)
            fails = can_fail(window.fault, self.shards)
            if window.waits or fails:
                self._flush(place, window)
            else:
                self.handles[place] = self.log.flush(wait=False)
            if fails and window.fault == "kinds":  # no flush of this log will be right
                break
            if fails and window.fault == "same" and self.shard in (0, self.shards - 1):
                self.log.same("odd same", 5.0)
            self._ask(all_of=False)
        else:
            self._flush(len(self.script.windows), None)
        self._ask(all_of=True)
        return sorted(self.rows.items())

    def _note(self, window: Window) -> None:
        calls = window.calls[self.shard] if self.owns else []
        kinds = self.script.kinds
        for group in grouped(calls, kinds) if window.grouping else [[call] for call in calls]:
            note(self.log, group, kinds[group[0].name])
        for name in {call.name for call in calls if kinds[call.name] == "same"}:
            self.log.same(name, same_of(name))
        for name in {call.name for call in calls if kinds[call.name] == "same[3]"}:
            self.log.same(name, elements(same_of(name)))
        if self.shard in window.reloading:
            state = self.log.state_dict()
            self.log = dm.Log(self.comm)
            self.log.load_state_dict(state)
        if self.owns:
            do_wrong(self.log, window.fault, self.shard, self.shards - 1)

    def _flush(self, place: int, window: Window | None) -> None:
        """Flush, at once or in the background, where the next flush raises what nobody asked."""
        try:
            if window is None or window.waits:
                self.rows[place] = self.log.flush()
                return
            handle = self.log.flush(wait=False)
            self.rows[place] = handle.result() if self.script.own % 2 else self.log.flush()
        except (dm.MismatchError, dm.InputError, dm.LayoutError) as error:
            self.rows[place] = f"{type(error).__name__}: {error}"

    def _ask(self, *, all_of: bool) -> None:
        """Ask for results, in an order of this rank's own."""
        for place in sorted(self.handles, key=lambda each: hash((each, self.rank))):
            if all_of or (self.script.own + place * 7 + self.rank) % 3 == 0:
                self.rows[place] = self.handles.pop(place).result()


def play(comm: Any, script: Script) -> list[tuple[int, Any]]:
    """Play a script on one rank."""
    return Player(comm, script).play()


def verdict(script: Script) -> Verdict:
    """Play a script by threads; return how it ended, what is wrong, how much was compared."""
    ended = outcomes(script.ranks, play, script, limit=60)
    errors = [f"{type(each.error).__name__}: {each.error}" for each in ended if each.error]
    if errors:
        hung = any(word in errors[0] for word in ("deadlock", "still busy"))
        return "hang" if hung else "error", errors, Counter()
    wrong, seen = judge(script, [each.value for each in ended])
    return "wrong" if wrong else "right", wrong, seen


def drawn(count: int, number: int, ranks: Sequence[int]) -> list[Script]:
    """Return scripts that hypothesis draws."""
    found: list[Script] = []
    options: dict[str, Any] = {"database": None, "deadline": None, "phases": [Phase.generate]}

    @seed(number)
    @settings(max_examples=count, suppress_health_check=[*HealthCheck], **options)
    @given(scripts(ranks))
    def keep(script: Script) -> None:
        found.append(script)

    keep()
    return found[:count]


def play_all(comm: Any, chosen: Sequence[Script]) -> list[Any]:
    """Play scripts one after the other in one world."""
    return [play(comm, script) for script in chosen]


def on_gloo(chosen: Sequence[Script], ranks: int) -> list[Verdict]:
    """Play scripts in one world of processes."""
    per_rank = run(ranks, play_all, chosen, backend="gloo", limit=900)
    verdicts = []
    for script, *rows in zip(chosen, *per_rank, strict=True):
        wrong, seen = judge(script, rows)
        verdicts.append(("wrong" if wrong else "right", wrong, seen))
    return verdicts


def counted(where: str, chosen: Sequence[Script], verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Return the counts of one backend; print them, and what is not right."""
    total: Counter[str] = Counter(scripts=len(chosen))
    for script, (how, what, seen) in zip(chosen, verdicts, strict=True):
        total += seen
        total[how] += 1
        if how != "right" and total["wrong"] + total["hang"] + total["error"] <= 5:
            print(how, what, script)
    total["distinct"] = len({repr(script) for script in chosen})
    keys = ("scripts", "distinct", "right", "wrong", "hang", "error", "rows", "values", "faults")
    told = {key: total[key] for key in keys}
    print(where, told, flush=True)
    return told


def main() -> None:
    """Play scripts by threads and by processes; print the counts, write JSON."""
    args = arguments(__doc__, threads=(10_000, 50), gloo=(300, 6))
    torch.set_num_threads(1)
    began, result = time.perf_counter(), dict[str, Any]()
    chosen = drawn(args.threads, 0, range(1, 9))
    result["threads"] = counted("threads", chosen, [verdict(script) for script in chosen])
    for ranks in (2, 3, 4):
        where = f"gloo, {ranks} ranks"
        chosen = drawn(args.gloo // 3, ranks, [ranks])
        result[where] = counted(where, chosen, on_gloo(chosen, ranks))
    result["seconds"] = round(time.perf_counter() - began)
    if args.is_whole:
        write_json("log_scripts.json", result)


if __name__ == "__main__":
    main()
