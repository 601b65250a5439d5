"""Hugging Face: ``attach`` makes a ``Trainer`` evaluate over the data of all ranks.

The trainer's own evaluation loop runs, over a loader in which every sample is on exactly one rank.
It is handed nothing to gather: each step's loss, logits and labels go into sums and metrics on this
rank, and what all ranks have is put together once, after the last batch.
"""

import weakref
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import EvalPrediction
from transformers.trainer_utils import denumpify_detensorize

from distmetrics.call_site import call_site
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.data.exact import exact_by
from distmetrics.data.rank_loader import StreamPart
from distmetrics.errors import ConfigurationError, InputError, PeerLostError
from distmetrics.integrations.named_metrics import by_name, plain
from distmetrics.integrations.transformers_concat import join
from distmetrics.integrations.transformers_log import attach_log
from distmetrics.integrations.transformers_loss import Weight
from distmetrics.integrations.transformers_steps import Outputs, Pass, update_classifier
from distmetrics.metrics.sync import sync_and_compute
from distmetrics.tree import map_leaves

__all__ = ["Attachment", "Outputs", "attach", "attach_log"]

# models whose loss asks all ranks for their number of boxes or masks
_DETECTORS = ("ObjectDetection", "InstanceSegmentation", "UniversalSegmentation", "ForSegmentation")
Update = Callable[[Any, "Outputs", Any], Any]


def attach(
    trainer: Any,
    metrics: Any = None,
    *,
    update: Update | None = None,
    weight: Weight | Literal["rows", "tokens"] | None = None,
    dealt: bool | None = None,
    equal_batches: bool | None = None,
) -> "Attachment":
    """Make a trainer evaluate and predict as one process would, whatever the number of ranks.

    Every sample counts once, ``eval_loss`` is the mean over samples, or over the tokens that count,
    and metrics are updated batch by batch and synced once, so that logits do not pile up.
    ``evaluate``, ``predict`` and evaluation during training keep their arguments and results, and
    ``compute_metrics`` goes on being called with all predictions, in the order of the data.

    Every rank calls it, after the trainer is made. Training itself is not changed. Where ranks
    share samples, as those of tensor parallelism do, evaluate inside ``use(layout.of(...))``.

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
        dealt: whether each rank's stream is its own share; see :func:`distmetrics.data.exact`.
        equal_batches: give every rank as many batches, for a model whose forward pass has a
            collective in it. By default for FSDP, DeepSpeed, models wrapped in DDP and
            those for object detection or instance segmentation.

    Raises:
        InputError: two metrics of one name, or one called ``loss``.
        ConfigurationError: something is attached to the trainer already.
    """
    return Attachment(trainer, metrics, update, weight, dealt, equal_batches)


class Attachment:
    """What :func:`attach` has put on a trainer."""

    def __init__(
        self,
        trainer: Any,
        metrics: Any,
        update: Update | None,
        weight: Any,
        dealt: bool | None,
        equal_batches: bool | None,
    ) -> None:
        # the trainer has this; a cycle would leave workers to the collector, which waits for them
        self._trainer = weakref.ref(trainer)
        self.metrics = metrics
        self.named = by_name(metrics)
        self.update = update or update_classifier
        self.weight = weight
        self.dealt = dealt
        self.equal_batches = equal_batches
        self._parts: dict[int, tuple[Any, Any]] = {}
        self._theirs = vars(trainer).get("evaluation_loop")
        if isinstance(getattr(self._theirs, "__self__", None), Attachment):
            raise ConfigurationError(
                "attach: the trainer has metrics attached already",
                do="call detach() of what the first attach returned.",
            )
        trainer.evaluation_loop = self._evaluation_loop

    @property
    def trainer(self) -> Any:
        """The trainer."""
        return self._trainer()

    def detach(self) -> None:
        """Take everything off the trainer; once is enough."""
        if getattr(getattr(self.trainer, "evaluation_loop", None), "__self__", None) is not self:
            return
        if self._theirs is not None:
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
        taken = Pass(self, keeps=not prediction_loss_only, has_fillers=equal_batches)
        theirs = self._theirs or partial(type(trainer).evaluation_loop, trainer)
        output, error = None, None
        loss_only = prediction_loss_only and not self.named
        try:
            with taken.in_charge(loss_only=loss_only):
                output = theirs(loader, description, loss_only, ignore_keys, metric_key_prefix)
        except Exception as failure:  # noqa: BLE001  (the others must hear of it)
            error = failure
        mine = taken.batches, taken.lacks_labels
        ranks = _share(comm, mine, error or taken.error)
        assert output is not None
        per_rank = [part for part, _ in ranks]
        named = {} if any(lacks for _, lacks in ranks) else self.named
        rounds = zip_longest(*per_rank) if isinstance(loader, StreamPart) else per_rank
        batches = [batch for part in rounds for batch in part if batch is not None]
        values = sync_and_compute({"loss": taken.sums, **named}, comm=comm, name="evaluate")
        return self._finished(output, values, batches, metric_key_prefix, comm)

    def _part(self, dataloader: Any, comm: Communicator, *, equal_batches: bool) -> Any:
        """Return an exact loader; the same one again where workers persist."""
        if id(dataloader) in self._parts:
            return self._parts[id(dataloader)][1]
        options: dict[str, Any] = {"dealt": self.dealt, "equal_batches": equal_batches}
        part = exact_by(dataloader, comm, **options)
        if self.trainer.args.dataloader_persistent_workers:
            self._parts[id(dataloader)] = dataloader, part
        return part

    def _finished(
        self, output: Any, values: Any, batches: list[Any], prefix: str, comm: Communicator
    ) -> Any:
        """Return the loop's output with what all ranks have."""
        args = self.trainer.args
        sums = {name: value.item() for name, value in values.pop("loss").items()}
        found = {"attached metrics": plain(values)}
        if sums["losses"]:
            loss = _mean_loss(sums, skips=args.logging_nan_inf_filter)
            found["the trainer"] = {"loss": loss}
        columns = _columns(batches, together=args.eval_do_concat_batches)
        predictions, label_ids = columns.get("predictions"), columns.get("label_ids")
        compute = self.trainer.compute_metrics
        if compute is not None and predictions is not None and label_ids is not None:
            theirs = _on_all_ranks(comm, compute, EvalPrediction(**columns))
            found["compute_metrics"] = denumpify_detensorize(theirs)  # type: ignore[no-untyped-call]
        return output._replace(
            predictions=predictions,
            label_ids=label_ids,
            metrics={**output.metrics, **_named(found, prefix)},
            # the loop knows a data set's length, or else what this rank has read
            num_samples=max(output.num_samples, sums["rows"]),
        )


def _named(found: dict[str, dict[str, Any]], prefix: str) -> dict[str, Any]:
    """Return what each source has found by the names under which it is logged."""
    named: dict[str, Any] = {}
    for source, values in found.items():
        full = {n if n.startswith(f"{prefix}_") else f"{prefix}_{n}": x for n, x in values.items()}
        twice = sorted(named.keys() & full.keys())
        if twice:
            raise InputError(
                f"evaluate: {twice[0]!r} is given twice, the second time by {source}",
                do="call the metric otherwise, attach(trainer, {name: metric}), or the key of "
                "what compute_metrics returns.",
            )
        named |= full
    return named


def _mean_loss(sums: dict[str, float], *, skips: bool) -> float:
    """Return the loss; ``skips`` leaves out batches whose loss is not finite, if others are."""
    kind = "finite_" if skips and sums["finite_weight"] else ""
    weight = sums[f"{kind}weight"]
    return sums[f"{kind}total"] / weight if weight else float("nan")


def _columns(batches: list[Any], *, together: bool) -> dict[str, Any]:
    """Return the batches' parts by name as NumPy arrays, joined or as lists."""
    if not batches:
        return {}
    if together:
        columns = join(batches)
    else:
        columns = {name: [batch.get(name) for batch in batches] for name in batches[0]}
    result: dict[str, Any] = map_leaves(_array, columns)
    return result


def _array(leaf: Any) -> Any:
    return leaf.numpy() if isinstance(leaf, Tensor) else leaf


def _share(comm: Communicator, mine: Any, error: Exception | None) -> list[Any]:
    """Return what every rank has, unless a rank has failed.

    Raises:
        Exception: of this rank.
        PeerLostError: another rank has failed.
    """
    text = "" if error is None else f"{type(error).__name__}: {error}"
    ranks = gather_objects([text, mine], tuple, "evaluate", call_site(), comm=comm)
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
    whole = comm.whole
    shares = trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size() > 1
    problem = ""
    if args.n_gpu > 1:
        problem = "one process drives several devices (DataParallel)"
    elif shares and whole is comm:
        problem = "ranks share samples (tensor, context or sequence parallelism)"
    elif args.world_size != whole.world_size:
        problem = f"the trainer has {args.world_size} ranks and distmetrics {whole.world_size}"
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
    if any(kind in type(trainer.model).__name__ for kind in _DETECTORS):
        return True
    return any(isinstance(module, kinds) for module in trainer.model.modules())
