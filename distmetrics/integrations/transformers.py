"""Hugging Face: ``attach`` makes a ``Trainer`` evaluate over the data of all ranks.

The trainer's own evaluation loop runs, over a loader in which every sample is on exactly one rank.
It is handed nothing to gather: each step's loss, logits and labels go into sums and metrics on this
rank, and what all ranks have is put together once, after the last batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import EvalPrediction
from transformers.trainer_pt_utils import find_batch_size
from transformers.trainer_utils import denumpify_detensorize

from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.base import Communicator, call_site
from distmetrics.comm.current import chosen
from distmetrics.data.dealing import RUNS
from distmetrics.data.exact import exact_by
from distmetrics.data.fresh import fresh
from distmetrics.data.joining import join, stored
from distmetrics.data.rank_loader import StreamPart
from distmetrics.errors import ConfigurationError, InputError, PeerLostError
from distmetrics.integrations.named_metrics import by_name, each, plain
from distmetrics.integrations.transformers_loss import Weight, weight_of
from distmetrics.state.function import from_function
from distmetrics.state.sync import sync_and_compute
from distmetrics.tree import map_leaves, move

__all__ = ["Attachment", "Outputs", "attach"]

Update = Callable[[Any, "Outputs", Any], Any]
_SUMS = ("total", "weight", "finite_total", "finite_weight", "losses", "rows")


class Outputs(NamedTuple):
    """What the trainer's ``prediction_step`` has made of a batch.

    Attributes:
        loss: the mean over what counts in the batch, or None without labels.
        logits: the model's output but for the loss, a tuple if it is several tensors; the generated
            tokens under ``predict_with_generate``.
        labels: the batch's labels, or None.
    """

    loss: Any
    logits: Any
    labels: Any


def attach(
    trainer: Any,
    metrics: Any = None,
    *,
    update: Update | None = None,
    weight: Weight | Literal["rows", "tokens"] | None = None,
    equal_batches: bool | None = None,
) -> "Attachment":
    """Make a trainer evaluate and predict as one process would, whatever the number of ranks.

    Every sample counts once, ``eval_loss`` is the mean over samples, or over the tokens that count,
    and metrics are updated batch by batch and synced once, so that logits do not pile up.
    ``evaluate``, ``predict`` and evaluation during training keep their arguments and results, and
    ``compute_metrics`` goes on being called with all predictions, in the order of the data.

    Every rank calls it, after the trainer is made. Training itself is not changed.

    Args:
        trainer: a ``Trainer`` or ``Seq2SeqTrainer``.
        metrics: a metric of torchmetrics, torcheval or ``from_function``, a ``MetricCollection``, a
            list, or a dict by name; logged as ``eval_<name>``. They are reset at the start of every
            evaluation.
        update: called as ``update(metrics, outputs, inputs)`` for each batch, with the metrics as
            they were passed, :class:`Outputs` and the batch. By default each metric's
            ``update(logits, labels)``, for models that give a sample one class.
        weight: how much a batch's loss counts. By default the number of ``labels`` that the model
            takes the mean over: those that are not -100, but for the first of each row where a
            causal language model predicts the next one. ``"rows"`` where there are no such labels,
            and for losses of CTC and transducers. Or a function of the batch, for a loss that is
            another mean.
        equal_batches: give every rank as many batches, for a model whose forward pass has a
            collective in it. By default for FSDP, DeepSpeed and models wrapped in DDP.

    Raises:
        InputError: two metrics of one name, or one called ``loss``.
        ConfigurationError: something is attached to the trainer already.
    """
    return Attachment(trainer, metrics, update, weight, equal_batches)


class Attachment:
    """What :func:`attach` has put on a trainer."""

    def __init__(
        self,
        trainer: Any,
        metrics: Any,
        update: Update | None,
        weight: Any,
        equal_batches: bool | None,
    ) -> None:
        self.trainer = trainer
        self.metrics = metrics
        self.named = by_name(metrics)
        self.update = update or _update_classifier
        self.weight = weight
        self.equal_batches = equal_batches
        self._parts: dict[int, tuple[Any, Any]] = {}
        self._theirs = trainer.evaluation_loop
        if isinstance(getattr(self._theirs, "__self__", None), Attachment):
            raise ConfigurationError(
                "attach: the trainer has metrics attached already",
                do="call detach() of what the first attach returned.",
            )
        self._on_instance = "evaluation_loop" in vars(trainer)
        trainer.evaluation_loop = self._evaluation_loop

    def detach(self) -> None:
        """Take everything off the trainer; once is enough."""
        if getattr(self.trainer.evaluation_loop, "__self__", None) is not self:
            return
        if self._on_instance:
            self.trainer.evaluation_loop = self._theirs
        else:
            del self.trainer.evaluation_loop

    def _evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Do what the trainer's own loop does, and return what it returns."""
        trainer, comm = self.trainer, chosen(None)
        _check(trainer, comm)
        if prediction_loss_only is None:
            prediction_loss_only = trainer.args.prediction_loss_only
        equal_batches = self.equal_batches
        if equal_batches is None:
            equal_batches = _has_collectives(trainer)
        loader = self._part(dataloader, comm, equal_batches=equal_batches)
        taken = _Pass(self, keeps=not prediction_loss_only, has_fillers=equal_batches)
        output, error = None, None
        loss_only = prediction_loss_only and not self.named
        try:
            with taken.in_charge(loss_only=loss_only):
                output = self._theirs(
                    loader, description, loss_only, ignore_keys, metric_key_prefix
                )
        except Exception as failure:  # noqa: BLE001  (the others must hear of it)
            error = failure
        per_rank = _share(comm, taken.batches, error or taken.error)
        assert output is not None
        rounds = zip_longest(*per_rank) if isinstance(loader, StreamPart) else per_rank
        batches = [batch for part in rounds for batch in part if batch is not None]
        return self._finished(output, taken, batches, metric_key_prefix, comm)

    def _part(self, dataloader: Any, comm: Communicator, *, equal_batches: bool) -> Any:
        """Return an exact loader; the same one again where workers persist."""
        if id(dataloader) in self._parts:
            return self._parts[id(dataloader)][1]
        part = exact_by(dataloader, comm, RUNS, equal_batches=equal_batches)
        if self.trainer.args.dataloader_persistent_workers:
            self._parts[id(dataloader)] = dataloader, part
        return part

    def _finished(
        self, output: Any, taken: "_Pass", batches: list[Any], prefix: str, comm: Communicator
    ) -> Any:
        """Return the loop's output with what all ranks have."""
        args = self.trainer.args
        values = sync_and_compute({"loss": taken.sums, **self.named}, comm=comm, name="evaluate")
        sums = {name: value.item() for name, value in values.pop("loss").items()}
        metrics = plain(values)
        if sums["losses"]:
            metrics["loss"] = _mean_loss(sums, skips=args.logging_nan_inf_filter)
        columns = _columns(batches, together=args.eval_do_concat_batches)
        predictions, label_ids = columns.get("predictions"), columns.get("label_ids")
        compute = self.trainer.compute_metrics
        if compute is not None and predictions is not None and label_ids is not None:
            theirs = _on_all_ranks(comm, compute, EvalPrediction(**columns))
            twice = metrics.keys() & theirs.keys()
            if twice:
                raise InputError(
                    f"evaluate: metrics and compute_metrics both give {sorted(twice)[0]!r}",
                    do="give the attached metric another name: attach(trainer, {name: metric}).",
                )
            metrics |= denumpify_detensorize(theirs)  # type: ignore[no-untyped-call]
        named = {}
        for name, value in metrics.items():
            named[name if name.startswith(f"{prefix}_") else f"{prefix}_{name}"] = value
        return output._replace(
            predictions=predictions,
            label_ids=label_ids,
            metrics={**output.metrics, **named},
            # the loop knows a data set's length, or else what this rank has read
            num_samples=max(output.num_samples, sums["rows"]),
        )


class _Pass:
    """One pass over a rank's data."""

    def __init__(self, attachment: Attachment, *, keeps: bool, has_fillers: bool) -> None:
        self.attachment = attachment
        self.trainer = attachment.trainer
        self.keeps = keeps
        self.has_fillers = has_fillers
        self.weight = weight_of(attachment.weight, self.trainer)
        self.sums = from_function(dict, dict.fromkeys(_SUMS, "sum"))
        self.batches: list[Any] = []
        self.error: Exception | None = None
        self.include = tuple(self.trainer.args.include_for_metrics)

    @contextmanager
    def in_charge(self, *, loss_only: bool) -> Iterator[None]:
        """Let the trainer's steps end here, and let none of them talk to other ranks."""
        trainer = self.trainer
        step, compute_loss = trainer.prediction_step, trainer.compute_loss

        def prediction_step(
            model: Any, inputs: Any, prediction_loss_only: bool, *args: Any, **kwargs: Any
        ) -> tuple[None, None, None]:
            self._take(inputs, *step(model, inputs, loss_only, *args, **kwargs))
            return None, None, None

        def own_mean(*args: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
            return compute_loss(*args, **kwargs)

        others = [name for name in self.include if name != "inputs"]
        for metric in each(self.attachment.metrics):
            metric.reset()
            if hasattr(metric, "to"):
                metric.to(trainer.args.device)
        with (
            _replaced(trainer, prediction_step=prediction_step, compute_loss=own_mean),
            _replaced(
                trainer.args, average_tokens_across_devices=False, include_for_metrics=others
            ),
        ):
            yield

    def _take(self, inputs: Any, loss: Any, logits: Any, labels: Any) -> None:
        """Consume a batch, unless it only fills up."""
        if self.error is not None or (self.has_fillers and not len(fresh(torch.empty(1)))):
            return
        try:
            with torch.no_grad():
                self._add(move(inputs, self.trainer.args.device), Outputs(loss, logits, labels))
        except Exception as error:
            if not self.has_fillers:
                raise
            self.error = error  # the others need this rank in the model until the last batch

    def _add(self, inputs: Any, outputs: Outputs) -> None:
        rows = find_batch_size(inputs) or 0  # type: ignore[no-untyped-call]
        self.sums.update(rows=rows)
        if outputs.loss is not None:
            weight = torch.as_tensor(self.weight(inputs, rows), device=outputs.loss.device)
            self.sums.update(**_terms(outputs.loss, weight))
        if self.attachment.named:
            self.attachment.update(self.attachment.metrics, outputs, inputs)
        if self.keeps:
            self.batches.append(self._kept(inputs, rows, outputs))

    def _kept(self, inputs: Any, rows: int, outputs: Outputs) -> dict[str, Any]:
        """Return what predictions of all ranks are put together of."""
        trainer = self.trainer
        logits, preprocess = outputs.logits, trainer.preprocess_logits_for_metrics
        if logits is not None and preprocess is not None:
            logits = preprocess(logits, outputs.labels)
        kept = {"predictions": logits, "label_ids": outputs.labels}
        if "inputs" in self.include:
            kept["inputs"] = inputs[getattr(trainer.model, "main_input_name", "input_ids")]
        if "loss" in self.include and outputs.loss is not None:
            kept["losses"] = outputs.loss.repeat(rows)
        return {name: stored(tree) for name, tree in kept.items() if tree is not None}


def _update_classifier(metrics: Any, outputs: Outputs, inputs: Any) -> None:
    """Update metrics of a model that gives each sample one class."""
    logits, labels = outputs.logits, outputs.labels
    is_classifier = isinstance(logits, Tensor) and isinstance(labels, Tensor)
    if not is_classifier or logits.ndim != 2 or labels.ndim != 1 or labels.is_floating_point():
        shapes = [map_leaves(_shape, tree) for tree in (logits, labels)]
        raise InputError(
            "attach: what the metrics are to be updated with is known only for models that give "
            f"a sample one class; here logits are {shapes[0]} and labels {shapes[1]}",
            do="attach(trainer, metrics, update=lambda metrics, outputs, inputs: …).",
        )
    for metric in each(metrics):
        metric.update(logits, labels)


def _shape(leaf: Any) -> str:
    return f"{list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


def _terms(loss: Tensor, weight: Tensor) -> dict[str, Any]:
    """Return what a batch adds to the sums; the mean of nothing is NaN, and adds nothing."""
    total = torch.where(weight > 0, loss.detach().float() * weight, 0.0)
    is_finite = total.isfinite()
    return {
        "total": total,
        "weight": weight,
        "finite_total": torch.where(is_finite, total, 0.0),
        "finite_weight": torch.where(is_finite, weight, 0),
        "losses": 1,
    }


def _mean_loss(sums: dict[str, float], *, skips: bool) -> float:
    """Return the loss; ``skips`` leaves out batches whose loss is not finite, if others are."""
    kind = "finite_" if skips and sums["finite_weight"] else ""
    weight = sums[f"{kind}weight"]
    return sums[f"{kind}total"] / weight if weight else float("nan")


def _columns(batches: list[Any], *, together: bool) -> dict[str, Any]:
    """Return the batches' parts by name as NumPy arrays, joined or as lists."""
    columns = {}
    for name in batches[0] if batches else ():
        parts = [batch[name] for batch in batches]
        columns[name] = map_leaves(Tensor.numpy, join(parts) if together else parts)
    return columns


def _share(comm: Communicator, mine: Any, error: Exception | None) -> list[Any]:
    """Return what every rank has, unless a rank has failed.

    Raises:
        Exception: of this rank.
        PeerLostError: another rank has failed.
    """
    text = "" if error is None else f"{type(error).__name__}: {error}"
    ranks = gather_objects([text, mine], tuple, comm, "evaluate", call_site())
    if error is not None:
        raise error
    failed = {rank: theirs for rank, (theirs, _) in enumerate(ranks) if theirs}
    if failed:
        raise PeerLostError(
            "evaluate: the evaluation failed on another rank",
            per_rank=failed,
            rank=comm.rank,
            peers=failed,
        )
    return [part for _, part in ranks]


def _on_all_ranks(comm: Communicator, function: Callable[[Any], Any], value: Any) -> Any:
    """Return what a function of the user's returns, once it has on every rank."""
    result, error = None, None
    try:
        result = function(value)
    except Exception as failure:  # noqa: BLE001  (the others must hear of it)
        error = failure
    _share(comm, None, error)
    return result


def _check(trainer: Any, comm: Communicator) -> None:
    """Refuse what can't be evaluated exactly."""
    args = trainer.args
    problem = ""
    if args.n_gpu > 1:
        problem = "one process drives several devices (DataParallel)"
    elif trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size() > 1:
        problem = "ranks share samples (tensor, context or sequence parallelism)"
    elif args.world_size != comm.world_size:
        problem = f"the trainer has {args.world_size} ranks and distmetrics {comm.world_size}"
    elif args.batch_eval_metrics and trainer.compute_metrics is not None:
        problem = "batch_eval_metrics gives compute_metrics the batches of all ranks"
    if problem:
        raise ConfigurationError(
            f"evaluate: attached metrics are for data parallel jobs, and {problem}",
            do="start one process a device, each with samples of its own, and attach metrics with "
            "update= in the place of batch_eval_metrics.",
        )


def _has_collectives(trainer: Any) -> bool:
    """True if ranks may need each other in the model's forward pass."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return True
    kinds = (FSDPModule, FullyShardedDataParallel, DistributedDataParallel)
    return any(isinstance(module, kinds) for module in trainer.model.modules())


@contextmanager
def _replaced(target: Any, **values: Any) -> Iterator[None]:
    """Give an object other attributes for the length of the block."""
    before = {name: vars(target)[name] for name in values if name in vars(target)}
    try:
        vars(target).update(values)
        yield
    finally:
        for name in values:
            if name in before:
                vars(target)[name] = before[name]
            else:
                vars(target).pop(name, None)
