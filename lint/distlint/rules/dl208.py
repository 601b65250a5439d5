"""A shuffling sampler that is never told the epoch."""

from __future__ import annotations

import libcst as cst

from distlint.collectives import called
from distlint.edits import Change
from distlint.rules.base import Rule
from distlint.samplers import names_evaluation, sampler_of, shuffles
from distlint.source import dotted, last, number

_STEPS = frozenset({"backward", "manual_backward"})
_DEALERS = frozenset({"prepare", "prepare_data_loader", "setup_dataloaders", "fit"})


class DL208(Rule):
    """``set_epoch`` of a shuffling ``DistributedSampler`` is never called: each epoch is the same.

    What goes wrong: each rank sees the same batches in the same order in every epoch:

        epoch 0   rank 0 sees 3 7 1, rank 1 sees 0 5 2
        epoch 1   rank 0 sees 3 7 1, rank 1 sees 0 5 2

    Why: the sampler draws its order from its seed and its epoch, and only ``set_epoch`` changes the
    epoch.

    How to fix: ``sampler.set_epoch(epoch)`` at the start of every epoch. Lightning and Accelerate
    call it themselves.

    When it is silent:

    - the loop over epochs, or a function without a loop, calls ``set_epoch``
    - ``shuffle`` is ``False`` or a variable
    - the loader or its sampler is not made in the file
    - there is one epoch, or the loop has no backward pass
    - a call of ``prepare``, ``setup_dataloaders`` or ``fit`` in the file gives a framework the
      loader
    """

    name = "sampler-without-set-epoch"
    shown = ("bad_ddp_loop", "good_set_epoch", "bad_trainer_class", "good_accelerate_prepares")
    tokens = ((b"DistributedSampler",), (b"for ",), (b"backward",))

    def check(self) -> None:
        """Report each loop over epochs around a loop over the batches of such a sampler."""
        names = {last(call.func) for call in self.source.nodes(cst.Call)}
        if names & _DEALERS:
            return
        told: set[cst.For] = set()
        for epochs in self.source.nodes(cst.For):
            if not self._counts(epochs) or any(self.source.is_within(epochs, e) for e in told):
                continue
            if self._is_told(epochs):
                continue
            for loop in self._loops(epochs):
                sampler = sampler_of(self.source, loop.iter)
                shown = self.source.code(loop.iter)
                if sampler is None or not shuffles(sampler) or names_evaluation(shown):
                    continue
                if self._trains(loop):
                    told.add(epochs)
                    self._tell(epochs, loop, sampler)
                    break

    def _counts(self, loop: cst.For) -> bool:
        """Return whether a loop counts, and not to one."""
        over = loop.iter
        if isinstance(over, cst.Call) and last(over.func) in ("tqdm", "trange") and over.args:
            inner = over.args[0].value
            over = inner if isinstance(inner, cst.Call) else over
        if not isinstance(over, cst.Call) or last(over.func) not in ("range", "trange", "count"):
            return False
        return [number(each.value) for each in over.args] not in ([1.0], [0.0, 1.0])

    def _is_told(self, epochs: cst.For) -> bool:
        """Return whether ``set_epoch`` is called in the loop, or in a function without one."""
        source = self.source
        calls = (c for c in source.nodes(cst.Call) if last(c.func) == "set_epoch")
        return any(
            source.is_within(call, epochs)
            or not any(isinstance(each, cst.For) for each in source.ancestors(call))
            for call in calls
        )

    def _loops(self, epochs: cst.For) -> list[cst.For]:
        """Return the loops inside of another one, those of a called function included."""
        source = self.source
        found = list(source.below(epochs, cst.For))
        for call in source.below(epochs, cst.Call):
            function = called(source, call)
            if function is not None and not source.is_within(epochs, function):
                found += source.own(function, cst.For)
        return found

    def _trains(self, loop: cst.For) -> bool:
        """Return whether a backward pass is made, one call deep."""
        for call in self.source.below(loop, cst.Call):
            function = called(self.source, call)
            inner = self.source.below(function, cst.Call) if function is not None else ()
            if any(last(each.func) in _STEPS for each in (call, *inner)):
                return True
        return False

    def _tell(self, epochs: cst.For, loop: cst.For, sampler: cst.Call) -> None:
        self.report(
            epochs,
            "every epoch has the same order: "
            "call sampler.set_epoch(epoch) at the start of each epoch",
            *self._told(epochs, loop, sampler),
            about=[(sampler, "sampler", "its order depends on the epoch that it is told")],
        )

    def _told(self, epochs: cst.For, loop: cst.For, sampler: cst.Call) -> list[Change]:
        """Return the change that tells the epoch, where loader and epoch have names here."""
        loader = loop.iter
        while isinstance(loader, cst.Call) and loader.args:
            loader = loader.args[0].value
        made = self.source.ancestors(sampler)
        is_always = not any(isinstance(each, cst.If | cst.IfExp) for each in made)
        is_here = self.source.is_within(loop, epochs) and dotted(loader) and is_always
        if not is_here or not isinstance(epochs.target, cst.Name):
            return []
        if not isinstance(epochs.body, cst.IndentedBlock):
            return []
        text = f"{dotted(loader)}.sampler.set_epoch({epochs.target.value})"
        return [Change(epochs.body.body[0], text, "before")]
