"""A shuffling sampler that repeats examples, in an evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from distlint.guards import guards
from distlint.rules.base import Rule
from distlint.samplers import assigned, is_sampler, names_evaluation, names_training
from distlint.source import argument, has_spread, is_true, last, object_of


class DL205(Rule):
    """A shuffling ``DistributedSampler`` feeds an evaluation: it repeats samples drawn at random.

    What goes wrong: some samples count twice, and which ones depends on the seed and the epoch:

        5 samples, 2 ranks, 1 is wrong       accuracy 4/5 = 0.80
        6 drawn, a right one twice           accuracy 5/6 = 0.83
        6 drawn, the wrong one twice         accuracy 4/6 = 0.67

    Why: ``DistributedSampler`` repeats samples until every rank has equally many. With
    ``shuffle=True``, its default, it draws which ones.

    How to fix: ``shuffle=False`` always repeats the first ones. For an exact number use
    ``distmetrics.data.exact(loader)``, gather and cut to ``len(dataset)``, or give each rank
    ``range(rank, n, world_size)``.

    When it is silent:

    - ``shuffle`` is given, or ``drop_last=True``
    - nothing names an evaluation
    - the function that makes the sampler is called under a condition on the rank
    - results are joined by key, or gathered and cut to length
    """

    name = "evaluation-sampler-repeats"
    shown = (
        "bad_validation_sampler",
        "good_does_not_shuffle",
        "bad_in_evaluate",
        "good_cut_to_length",
    )
    tokens = ((b"DistributedSampler",),)

    def check(self) -> None:
        """Report each sampler of an evaluation that shuffles since nobody said otherwise."""
        calls = [each for each in self.source.nodes(cst.Call) if is_sampler(self.source, each)]
        made = [e for e in calls if self._is_for_evaluation(e) and not self._is_of_one_rank(e)]
        if not made or self._joins():
            return
        for call in made:
            self.report(
                call,
                "this sampler repeats samples of the evaluation, drawn at random: "
                "pass shuffle=False",
            )

    def _is_for_evaluation(self, call: cst.Call) -> bool:
        if has_spread(call) or argument(call, 3, "shuffle") is not None:
            return False
        if is_true(argument(call, 5, "drop_last")):
            return False  # nothing is repeated
        own = list(self._names(call))
        if any(map(names_training, own)) or self._is_of_training_arm(call):
            return False
        method = self.source.function(call)
        if any(map(names_evaluation, own)) or method is None:
            return any(map(names_evaluation, own))
        name = method.name.value
        is_test = name.startswith("test_") and name != "test_dataloader"  # of pytest
        return (names_evaluation(name) and not is_test) or self._serves_evaluation(method)

    def _names(self, call: cst.Call) -> Iterator[str]:
        """Yield the names of the data set and of what the sampler is assigned to."""
        yield last(argument(call, 0, "dataset"))
        for each in self.source.ancestors(call):
            if isinstance(each, cst.Assign):
                yield from (last(target.target) for target in each.targets)
            if isinstance(each, cst.BaseStatement):
                return

    def _is_of_training_arm(self, call: cst.Call) -> bool:
        tests = (e.test for e in self.source.ancestors(call) if isinstance(e, cst.If | cst.IfExp))
        return any("train" in self.source.code(test).lower() for test in tests)

    def _serves_evaluation(self, method: cst.FunctionDef) -> bool:
        """Return whether a method makes loaders for ``val_dataloader`` too, one call away."""
        return not {"val_dataloader", "test_dataloader"}.isdisjoint(self.source.callers(method))

    def _is_of_one_rank(self, call: cst.Call) -> bool:
        """Return whether the function around a sampler is only called under a test of the rank."""
        function = self.source.function(call)
        name = function.name.value if function is not None else ""
        calls = self.source.calls(self.source.module, name)
        return any(any(guards(self.source, each)) for each in calls)

    def _joins(self) -> bool:
        """Return whether repeats drop out: results by key, or cut to the length of the data set."""
        source = self.source
        called = [last(call.func) for call in source.nodes(cst.Call)]
        if "gather_for_metrics" in called or any(map(self._merges, source.nodes(cst.Call))):
            return True
        cuts = (
            last(inner.func) == "len"
            for each in source.nodes(cst.Slice)
            if each.upper is not None
            for inner in source.below(each, cst.Call)
        )
        return any("gather" in name for name in called) and any(cuts)

    def _merges(self, call: cst.Call) -> bool:
        """Return whether a call in a loop adds the entries of a dict to another one."""
        if last(call.func) != "update" or len(call.args) != 1:
            return False
        made = assigned(self.source, object_of(call) or call.func)
        is_dict = any(isinstance(e, cst.Dict) or last(_called(e)) == "dict" for e in made)
        is_looped = any(isinstance(each, cst.For) for each in self.source.ancestors(call))
        return is_dict and is_looped and isinstance(call.args[0].value, cst.Name)


def _called(node: cst.BaseExpression) -> cst.BaseExpression | None:
    return node.func if isinstance(node, cst.Call) else None
