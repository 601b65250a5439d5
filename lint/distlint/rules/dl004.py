"""A sampler made by hand where the trainer puts in its own."""

from __future__ import annotations

import libcst as cst

from distlint.apis import is_world
from distlint.definitions import reaching
from distlint.edits import Change
from distlint.guards import deciding, is_rank_value
from distlint.rules.base import Rule
from distlint.source import argument, dotted, keyword, last

_SAMPLERS = frozenset(
    {
        "torch.utils.data.DistributedSampler",
        "torch.utils.data.distributed.DistributedSampler",
    }
)
_EVALUATION = ("val_", "test_", "predict_")  # hooks
_SAID = "Lightning adds a sampler itself, and this one fails on a single device: remove it"


class DL004(Rule):
    """A loader for Lightning is given a ``DistributedSampler``, which Lightning adds itself.

    What goes wrong: on one device there is no process group, and the sampler fails:

        ValueError: Default process group has not been initialized, please make sure to call
        init_process_group.

    On several devices it also shuffles validation data, as ``shuffle=True`` is its default.

    Why: on several devices Lightning adds a sampler to every loader. It shuffles training data, and
    evaluation data only if the loader does. It keeps a ``DistributedSampler`` that is there
    already.

    How to fix: remove the sampler, and pass ``shuffle=True`` to the training loader. To keep a
    sampler of your own, pass ``use_distributed_sampler=False`` to the trainer. The unsafe fix gives
    the loader the sampler's ``shuffle``, and none in ``val_dataloader``, ``test_dataloader`` and
    ``predict_dataloader``.

    When it is silent:

    - in projects with ``use_distributed_sampler=False``, or without a Lightning trainer
    - on other samplers, and on a ``num_replicas`` other than the world size
    - on samplers that neither ``*_dataloader`` nor a method that it calls makes
    - under a condition on an argument or a setting
    """

    name = "manual-distributed-sampler"
    shown = (
        "bad_in_the_loader",
        "good_shuffle_only",
        "bad_in_order_for_validation",
        "good_trainer_is_told",
    )
    severity = "warning"
    tokens = ((b"DistributedSampler",), (b"_dataloader",))
    in_lightning = True

    def check(self) -> None:
        """Report each sampler that a loader of a trainer's hook is given."""
        if self.facts.own_sampler or not self.facts.has_trainer:
            return
        for call in self.source.nodes(cst.Call):
            if self.source.name(call.func) in _SAMPLERS and self._is_of_trainer(call):
                loader = self._loader(call)
                if loader is not None and self._is_of_all(call) and not self._is_by_switch(call):
                    self.report(call, _SAID, *self._change(call, loader), safe=False)

    def _is_of_trainer(self, call: cst.Call) -> bool:
        """Return whether a hook that makes loaders makes the sampler, one call deep."""
        owner = self.source.class_of(call)
        if owner is None or not owner.kinds & {"lightning_module", "data_module"}:
            return False
        return bool(self._hooks(call))

    def _hooks(self, call: cst.Call) -> list[str]:
        """Return the hooks that make the sampler, one call deep."""
        method = self.source.method(call)
        if method is None:
            return []
        makers = [method.name.value, *self.source.callers(method)]
        ends = ("_dataloader", "_dataloaders")
        return [each for each in makers if each.endswith(ends) and each[0] != "_"]

    def _loader(self, call: cst.Call) -> cst.Call | None:
        """Return the loader of torch that is given the sampler."""
        function = self.source.function(call)
        assert function is not None
        for loader in self.source.below(function, cst.Call):
            if not last(loader.func).endswith("DataLoader"):
                continue
            given = keyword(loader, "sampler")
            if given is call:
                return loader
            if isinstance(given, cst.Name):
                listed = reaching(self.source, given).listed
                if any(each.value is call for each in listed):
                    return loader
        return None

    def _is_of_all(self, call: cst.Call) -> bool:
        """Return whether the sampler shares the data among all ranks, as the trainer's own does."""
        replicas, rank = argument(call, 1, "num_replicas"), argument(call, 2, "rank")
        asked = replicas.func if isinstance(replicas, cst.Call) else replicas
        is_all = replicas is None or dotted(replicas) == "None" or is_world(last(asked))
        return is_all and (
            rank is None or dotted(rank) == "None" or is_rank_value(self.source, rank)
        )

    def _is_by_switch(self, call: cst.Call) -> bool:
        """Return whether an argument or a setting decides: who sets it may know the trainer."""
        for test in deciding(self.source, call):
            is_asked = any(self.source.inside(test, cst.Call))
            if not is_asked and "trainer" not in self.source.code(test):
                return True
        return False

    def _change(self, call: cst.Call, loader: cst.Call) -> list[Change]:
        """Return ``shuffle=…``, or nothing, instead of a sampler inside of the loader."""
        given = self.source.parent(call)
        if not isinstance(given, cst.Arg) or self.source.parent(given) is not loader:
            return []
        if keyword(loader, "shuffle") is not None:
            return []
        shuffle = argument(call, 3, "shuffle")
        text = self.source.code(shuffle) if shuffle is not None else "True"
        evaluates = {each.startswith(_EVALUATION) for each in self._hooks(call)}
        if evaluates == {True}:
            return [Change(given, "")]
        if len(evaluates) == 2 and text == "True":  # that is for the training loader alone
            return []
        return [Change(given, f"shuffle={text}")]
