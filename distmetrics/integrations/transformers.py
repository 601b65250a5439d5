"""Hugging Face: ``attach`` makes a ``Trainer`` evaluate over the data of all ranks.

The trainer's own evaluation loop runs, over a loader in which every sample is on exactly one rank.
It is handed nothing to gather: each step's loss, logits and labels go into sums and metrics on this
rank, and what all ranks have is put together once, after the last batch. ``attach_log`` adds what
training steps log, of all ranks, to the trainer's own log.
"""

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distmetrics.call_site import call_site
from distmetrics.collectives.ops import gather_objects
from distmetrics.comm.communicator import Communicator, chosen
from distmetrics.data.exact import exact_by
from distmetrics.data.padding import fresh
from distmetrics.data.rank_loader import StreamPart
from distmetrics.errors import (
    ConfigurationError,
    InputError,
    InputTypeError,
    PeerLostError,
    optional,
)
from distmetrics.log.log import Log
from distmetrics.log.writers import numbers
from distmetrics.metrics.function import from_function
from distmetrics.metrics.sync import sync_and_compute
from distmetrics.tree import flatten, map_leaves, move

with optional("transformers", "distmetrics.integrations.transformers"):
    from transformers import EvalPrediction, Trainer
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.trainer_pt_utils import find_batch_size
    from transformers.trainer_utils import denumpify_detensorize

__all__ = ["Attachment", "Outputs", "attach", "attach_log"]

Update = Callable[[Any, "Outputs", Any], Any]
Weight = Callable[[Any], Any]
# Models whose loss asks all ranks for their number of boxes or masks.
_DETECTORS = ("ObjectDetection", "InstanceSegmentation", "UniversalSegmentation", "ForSegmentation")
_UNSHIFTED = ("XLNetLMHeadModel", "XLMWithLMHeadModel")  # they predict the label in its own place
_MEANS_OF_ROWS = ("CTC", "RNNT", "TDT")
_SUMS = ("total", "weight", "finite_total", "finite_weight", "losses", "rows")
_FILLER = -100  # a label that losses ignore, as Hugging Face fills up


class Outputs(NamedTuple):
    """What the trainer's ``prediction_step`` returned for a batch.

    Attributes:
        loss: the mean over the samples or tokens that count, or None without labels.
        logits: the model's output but for the loss, a tuple if it is several tensors; the generated
            tokens under ``predict_with_generate``.
        labels: the batch's labels, or None.

    >>> from torchmetrics.classification import MulticlassAccuracy
    >>> def update(metrics, outputs, inputs):  # attach(trainer, metrics, update=update)
    ...     metrics["top1"].update(outputs.logits, outputs.labels)
    >>> metrics = {"top1": MulticlassAccuracy(2)}
    >>> update(metrics, Outputs(None, torch.tensor([[0.1, 0.9]]), torch.tensor([1])), {})
    >>> metrics["top1"].compute()
    tensor(1.)
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
        weight: how much a batch's loss counts. ``"tokens"``: the number of integer ``labels`` that
            are not -100, without the first of each row if the model predicts the next one.
            ``"rows"``: the number of rows. None: tokens if there are such labels, else rows, and
            rows for losses of CTC and transducers. Or a function of the batch, for a loss that is
            another mean.
        dealt: whether each rank's stream is its own share; see :func:`distmetrics.data.exact`.
        equal_batches: give every rank as many batches, for a model whose forward pass has a
            collective in it. By default for FSDP, DeepSpeed, models wrapped in DDP and
            those for object detection or instance segmentation.

    Returns:
        the attachment, whose ``detach()`` takes it off again.

    Raises:
        InputError: two metrics of one class in a list, or one called ``loss``. In an evaluation:
            ``weight`` or the default ``update`` does not fit the batches, or ``compute_metrics``
            returns the name of a metric.
        InputTypeError: something in ``metrics`` is not a metric.
        ConfigurationError: something is attached to the trainer already. In an evaluation: one
            process drives several devices, or ranks share samples without a layout.
        PeerLostError: in an evaluation: it has failed on another rank.

    >>> import tempfile
    >>> from torchmetrics.classification import MulticlassAccuracy
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from transformers import Trainer, TrainingArguments
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    >>> config = BertConfig(vocab_size=9, num_attention_heads=2, num_labels=3, **sizes)
    >>> rows = [{"input_ids": [1, 2], "labels": label} for label in (0, 1, 2)]
    >>> folder = tempfile.TemporaryDirectory()
    >>> arguments = TrainingArguments(folder.name, use_cpu=True, report_to=[])
    >>> trainer = Trainer(BertForSequenceClassification(config), arguments, eval_dataset=rows)
    >>> attachment = attach(trainer, {"accuracy": MulticlassAccuracy(3, average="micro")})
    >>> round(trainer.evaluate()["eval_accuracy"], 3)  # the same class for equal inputs
    0.333
    >>> folder.cleanup()
    """
    return Attachment(trainer, metrics, update or update_classifier, weight, dealt, equal_batches)


class Attachment:
    """What :func:`attach` has put on a trainer.

    Attributes:
        metrics: as for :func:`attach`.
        named: the metrics by the names under which they are logged.
        update: as for :func:`attach`.
        weight: as for :func:`attach`.
        dealt: as for :func:`attach`.
        equal_batches: as for :func:`attach`.

    >>> import tempfile
    >>> from transformers import Trainer, TrainingArguments
    >>> folder = tempfile.TemporaryDirectory()
    >>> arguments = TrainingArguments(folder.name, use_cpu=True, report_to=[])
    >>> trainer = Trainer(torch.nn.Linear(1, 1), arguments)
    >>> attachment = attach(trainer)
    >>> attachment.trainer is trainer, attachment.named
    (True, {})
    >>> attachment.detach()  # the trainer evaluates as it did before
    >>> folder.cleanup()
    """

    def __init__(
        self,
        trainer: Any,
        metrics: Any,
        update: Update,
        weight: Any,
        dealt: bool | None,
        equal_batches: bool | None,
    ) -> None:
        # The trainer has this: a cycle would leave workers to the collector, which waits for them.
        self._trainer = weakref.ref(trainer)
        self.metrics, self.named, self.update = metrics, by_name(metrics), update
        self.weight, self.dealt, self.equal_batches = weight, dealt, equal_batches
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
        """Let the trainer evaluate as before; a second call does nothing."""
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
        options: dict[str, Any] = {"dealt": self.dealt, "equal_batches": equal_batches}
        loader = exact_by(dataloader, comm, **options)
        taken = _EvaluationPass(self, keeps=not prediction_loss_only, has_fillers=equal_batches)
        theirs = self._theirs or partial(type(trainer).evaluation_loop, trainer)
        output, error = None, None
        loss_only = prediction_loss_only and not self.named
        try:
            with taken.in_charge(loss_only=loss_only):
                output = theirs(loader, description, loss_only, ignore_keys, metric_key_prefix)
        except Exception as failure:  # noqa: BLE001  (the others must hear of it)
            error = failure
        ranks = _share(comm, (taken.batches, taken.lacks_labels), error or taken.error)
        assert output is not None
        per_rank = [part for part, _ in ranks]
        named = {} if any(lacks for _, lacks in ranks) else self.named
        rounds = zip_longest(*per_rank) if isinstance(loader, StreamPart) else per_rank
        batches = [batch for part in rounds for batch in part if batch is not None]
        values = sync_and_compute({"loss": taken.sums, **named}, comm=comm, name="evaluate")
        return self._finished(output, values, batches, metric_key_prefix, comm)

    def _finished(
        self, output: Any, values: Any, batches: list[Any], prefix: str, comm: Communicator
    ) -> Any:
        """Return the loop's output with what all ranks have."""
        args = self.trainer.args
        sums = {name: value.item() for name, value in values.pop("loss").items()}
        found = {"attached metrics": plain(values)}
        if sums["losses"]:
            # Batches whose loss is not finite are left out, if that is wanted and others are.
            kind = "finite_" if args.logging_nan_inf_filter and sums["finite_weight"] else ""
            weight = sums[f"{kind}weight"]
            loss = sums[f"{kind}total"] / weight if weight else float("nan")
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


# --- one pass over the data of a rank ---


class _EvaluationPass:
    """One pass over a rank's data: its steps, and what is kept of them."""

    def __init__(self, attachment: Any, *, keeps: bool, has_fillers: bool) -> None:
        self.attachment = attachment
        self.trainer = attachment.trainer
        self.keeps = keeps
        self.has_fillers = has_fillers
        self.weight = weight_of(attachment.weight, self.trainer)
        self.sums = from_function(dict, dict.fromkeys(_SUMS, "sum"))
        self.batches: list[Any] = []
        self.error: Exception | None = None
        self.lacks_labels = False
        is_theirs = type(self.trainer).compute_loss is not Trainer.compute_loss
        self.has_own_loss = is_theirs or self.trainer.compute_loss_func is not None
        self.include = tuple(self.trainer.args.include_for_metrics)

    @contextmanager
    def in_charge(self, *, loss_only: bool) -> Iterator[None]:
        """Let the trainer's steps end here, and let none of them talk to other ranks."""
        trainer = self.trainer
        step, compute_loss = trainer.prediction_step, trainer.compute_loss

        def prediction_step(
            model: Any, inputs: Any, prediction_loss_only: bool, *args: Any, **kwargs: Any
        ) -> tuple[None, None, None]:
            given = copy.copy(inputs)  # a step of the user's may take the labels out
            self._take(inputs, *step(model, given, loss_only, *args, **kwargs))
            return None, None, None

        def own_mean(
            model: Any, inputs: Any, *args: Any, num_items_in_batch: Any = None, **kwargs: Any
        ) -> Any:
            if num_items_in_batch is not None and self.has_own_loss:
                kwargs["num_items_in_batch"] = self.weight(inputs, _rows(inputs))
            return compute_loss(model, inputs, *args, **kwargs)

        for metric in self.attachment.named.values():
            metric.reset()
            if hasattr(metric, "to"):
                metric.to(trainer.args.device)
        others = [name for name in self.include if name != "inputs"]
        arguments = {"average_tokens_across_devices": False, "include_for_metrics": others}
        with (
            _replaced(trainer, prediction_step=prediction_step, compute_loss=own_mean),
            _replaced(trainer.args, **arguments),
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
        rows = _rows(inputs)
        self.sums.update(rows=rows)
        if outputs.loss is not None:
            weight = torch.as_tensor(self.weight(inputs, rows), device=outputs.loss.device)
            self.sums.update(**_terms(outputs.loss, weight))
        is_default = self.attachment.update is update_classifier
        if is_default and outputs.labels is None:
            self.lacks_labels = True
        elif self.attachment.named:
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
            kept["losses"] = outputs.loss.mean().repeat(rows)
        return {name: stored(tree) for name, tree in kept.items() if tree is not None}


def _rows(inputs: Any) -> int:
    return find_batch_size(inputs) or 0  # type: ignore[no-untyped-call]


def update_classifier(metrics: Any, outputs: Outputs, inputs: Any) -> None:
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
    for metric in by_name(metrics).values():
        metric.update(logits, labels)


def _shape(leaf: Any) -> str:
    return f"{list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


def _terms(loss: Tensor, weight: Tensor) -> dict[str, Any]:
    """Return what a batch adds to the sums; the mean of nothing is NaN, and adds nothing."""
    total = torch.where(weight > 0, loss.detach().float().mean() * weight, 0.0)
    is_finite = total.isfinite()
    return {
        "total": total,
        "weight": weight,
        "finite_total": torch.where(is_finite, total, 0.0),
        "finite_weight": torch.where(is_finite, weight, 0),
        "losses": 1,
    }


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


# --- the weight of a batch ---


def weight_of(chosen: Any, trainer: Any) -> Callable[[Any, int], Any]:
    """Return the function of a batch and its number of rows that gives its weight."""
    if callable(chosen):
        return lambda inputs, rows: chosen(inputs)
    if chosen not in (None, "rows", "tokens"):
        raise InputError(
            f"attach: weight={chosen!r} is not 'rows', 'tokens' or a function of the batch"
        )
    model = trainer.accelerator.unwrap_model(trainer.model)
    kind, shifts, ignored = getattr(model, "loss_type", None) or "", _shifts(model), _FILLER
    if kind == "ForSemanticSegmentation":
        ignored = getattr(model.config, "semantic_loss_ignore_index", ignored)
    names = ["labels", *(trainer.label_names if len(trainer.label_names) == 1 else [])]
    by_rows = chosen == "rows" or (chosen is None and any(each in kind for each in _MEANS_OF_ROWS))

    def weight(inputs: Any, rows: int) -> Any:
        labels = None if by_rows else inputs.get("shift_labels")
        if labels is None and not by_rows:
            labels = next((inputs[name] for name in names if inputs.get(name) is not None), None)
            labels = labels[..., 1:] if shifts and labels is not None else labels
        if isinstance(labels, Tensor) and not labels.is_floating_point():
            return labels.ne(ignored).sum()
        if chosen == "tokens":
            raise InputError("attach: weight='tokens', and a batch has no integer labels")
        return rows

    return weight


def _shifts(model: Any) -> bool:
    """True if a model predicts each label from those before it, so that the first is no target."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    name = type(model).__name__
    if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return name not in _UNSHIFTED
    return LOSS_MAPPING.get(getattr(model, "loss_type", None) or "") is ForCausalLMLoss


# --- what all ranks have, joined ---


def _columns(batches: list[Any], *, together: bool) -> dict[str, Any]:
    """Return the batches' parts by name as NumPy arrays, joined or as lists."""
    if together and batches:
        columns = join(batches)
    else:
        columns = {name: [batch.get(name) for batch in batches] for name in (batches or [{}])[0]}
    result: dict[str, Any] = map_leaves(
        lambda leaf: leaf.numpy() if isinstance(leaf, Tensor) else leaf, columns
    )
    return result


def stored(tree: Any) -> Any:
    """Return a tree's tensors on the CPU, as NumPy can take them, in plain dicts, lists, tuples."""
    if isinstance(tree, Tensor):
        tree = tree.detach().cpu()
        tree = tree.float() if tree.dtype == torch.bfloat16 else tree
        return tree if tree.ndim else tree[None]
    if isinstance(tree, Mapping):
        return {key: stored(child) for key, child in tree.items()}
    if isinstance(tree, list | tuple):
        children = [stored(child) for child in tree]
        return children if isinstance(tree, list) else tuple(children)
    return tree


def join(trees: Sequence[Any]) -> Any:
    """Return trees of one structure joined along the rows, narrower tensors filled up with -100.

    >>> join([torch.tensor([[1]]), torch.tensor([[2, 3]])])
    tensor([[   1, -100],
            [   2,    3]])
    """
    columns, specs = zip(*map(flatten, trees), strict=True)
    if len(texts := {spec.text: None for spec in specs}) > 1:
        raise _cannot_join(f"of different structures, such as {' and '.join([*texts][:2])}")
    return specs[0].unflatten([_cat(column) for column in zip(*columns, strict=True)])


def _cat(tensors: Sequence[Any]) -> Tensor:
    for x in tensors:
        if not isinstance(x, Tensor):
            raise _cannot_join(f"of type {type(x).__name__}, not tensors")
    shapes = {tuple(x.shape[1:]) for x in tensors}
    if len({len(sizes) for sizes in shapes}) > 1:
        raise _cannot_join("tensors with more dimensions")
    if len(shapes) == 1:
        return torch.cat(list(tensors))
    widest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    filled = []
    for x in tensors:
        wide = x.new_full((len(x), *widest), _FILLER)
        wide[(slice(None), *(slice(size) for size in x.shape[1:]))] = x
        filled.append(wide)
    return torch.cat(filled)


def _cannot_join(problem: str) -> InputError:
    return InputError(
        f"evaluate: what the model gives for each batch can't be joined: some are {problem}",
        do="let TrainingArguments(eval_do_concat_batches=False) give lists, one item a batch, or "
        "leave them out: predict(…, ignore_keys=[name]).",
    )


# --- metrics by name ---


def by_name(metrics: Any) -> dict[str, Any]:
    """Return the metrics by the names under which they are logged.

    A list's metrics are called as their classes, a collection's (under ``""``) as it says itself.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    elif isinstance(metrics, nn.ModuleDict):  # a MetricCollection
        named = {"": metrics}
    else:
        several = metrics if isinstance(metrics, list | tuple) else [metrics]
        named = {type(metric).__name__: metric for metric in several}
        if len(named) < len(several):
            raise InputError("attach: two metrics of one class", do="pass a dict by name.")
    for metric in named.values():
        if not hasattr(metric, "reset"):
            raise InputTypeError(
                f"attach: a {type(metric).__name__} is no metric",
                do="pass a metric of torchmetrics, torcheval or from_function; what needs all "
                "predictions at once is the trainer's compute_metrics.",
            )
    if "loss" in named:
        raise InputError("attach: the loss is logged already", do="call the metric otherwise.")
    return named


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as numbers and lists, with those of a collection or a dict one by one."""
    result = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            for key, part in plain(value).items():
                result[f"{name}_{key}" if name else key] = part
        else:
            result[name] = map_leaves(_number, value)
    return result


def _number(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.item() if leaf.numel() == 1 else leaf.tolist()


# --- the training log ---


def attach_log(trainer: Any, log: Log) -> None:
    """Put what a log is told, on all ranks, into the trainer's own log.

    At each logging step (``logging_steps``, ``logging_strategy``) the log is flushed, in one
    exchange, and its values stand beside the trainer's "loss": in ``trainer.state.log_history``,
    and wherever ``report_to`` says. What steps have logged since is in the summary at the end of
    the training. Log in ``training_step``, a callback, or ``compute_loss``; there only if
    ``model.training``, since evaluations call it as well.

    Every rank calls this, after the trainer is made. What was logged since the last logging step
    is in no checkpoint of the trainer.

    Args:
        trainer: a ``Trainer``, or a subclass such as TRL's.
        log: may have a layout, and writers of its own.

    Raises:
        ConfigurationError: a log is attached to the trainer already.
        InputError: at a logging step, on every rank: the trainer logs a name itself.

    >>> import tempfile
    >>> from transformers import Trainer, TrainingArguments
    >>> class WithNorm(Trainer):
    ...     def compute_loss(self, model, inputs, **kwargs):
    ...         log.mean("norm", 2.0, weight=1)
    ...         return model.weight.square().sum()
    >>> folder, log = tempfile.TemporaryDirectory(), Log()
    >>> options = {"max_steps": 1, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True}
    >>> arguments = TrainingArguments(folder.name, use_cpu=True, report_to=[], **options)
    >>> trainer = WithNorm(torch.nn.Linear(1, 1), arguments, train_dataset=[{"input": 1.0}])
    >>> attach_log(trainer, log)
    >>> output = trainer.train()
    {'loss': ...'norm': ...}
    {'train_runtime': ...}
    >>> trainer.state.log_history[0]["norm"]
    2.0
    >>> folder.cleanup()
    """
    if isinstance(vars(trainer).get("log"), _RowsForHistory):
        raise ConfigurationError(
            "attach_log: the trainer has a log attached already",
            do="use that one.",
        )
    trainer.log = _RowsForHistory(trainer, log)


class _RowsForHistory:
    """The ``log`` of one trainer."""

    def __init__(self, trainer: Any, log: Log) -> None:
        # The trainer has this: a cycle would keep it until the collector comes.
        self._trainer = weakref.ref(trainer)
        self._theirs = vars(trainer).get("log")
        self._log = log

    def __call__(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Do what ``Trainer.log`` does, with a row where the loop logs a training step."""
        trainer: Any = self._trainer()
        # The trainer's loop sets the one on every rank before a step is logged; the other is in
        # the summary of a training alone. What is logged between may be of one rank.
        if trainer.control.should_log or "train_runtime" in logs:
            row = numbers(self._log.flush(trainer.state.global_step))
            twice = sorted(row.keys() & logs.keys())
            if twice:
                raise InputError(
                    f"attach_log: the trainer logs {twice[0]!r} as well",
                    do="log it by another name.",
                )
            logs |= row
        theirs = self._theirs or partial(type(trainer).log, trainer)
        theirs(logs, *args, **kwargs)
