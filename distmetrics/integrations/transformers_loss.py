"""How much the mean loss of a batch counts in the mean over all data of a Hugging Face trainer."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from distmetrics.errors import InputError

Weight = Callable[[Any], Any]
_UNSHIFTED = ("XLNetLMHeadModel", "XLMWithLMHeadModel")  # they predict the label in its own place
_MEANS_OF_ROWS = ("CTC", "RNNT", "TDT")


def weight_of(chosen: Any, trainer: Any) -> Callable[[Any, int], Any]:
    """Return the function of a batch and its number of rows that gives its weight."""
    if callable(chosen):
        return lambda inputs, rows: chosen(inputs)
    if chosen not in (None, "rows", "tokens"):
        raise InputError(
            f"attach: weight={chosen!r} is none of 'rows', 'tokens' and a function of the batch"
        )
    model = trainer.accelerator.unwrap_model(trainer.model)
    kind = getattr(model, "loss_type", None) or ""
    shifts = _shifts(model)
    ignored = -100
    if kind == "ForSemanticSegmentation":
        ignored = getattr(model.config, "semantic_loss_ignore_index", ignored)
    names = ["labels", *(trainer.label_names if len(trainer.label_names) == 1 else [])]
    by_rows = chosen == "rows" or (chosen is None and any(each in kind for each in _MEANS_OF_ROWS))

    def weight(inputs: Any, rows: int) -> Any:
        labels = None if by_rows else _targets(inputs, names, shifts=shifts)
        if labels is not None:
            return labels.ne(ignored).sum()
        if chosen == "tokens":
            raise InputError("attach: weight='tokens', and a batch has no integer labels")
        return rows

    return weight


def _targets(inputs: Any, names: list[str], *, shifts: bool) -> Tensor | None:
    """Return the labels that a loss is the mean over, ignored ones included."""
    labels = inputs.get("shift_labels")
    if labels is None:
        labels = next((inputs[name] for name in names if inputs.get(name) is not None), None)
        if shifts and labels is not None:
            labels = labels[..., 1:]
    is_labels = isinstance(labels, Tensor) and not labels.is_floating_point()
    return labels if is_labels else None


def _shifts(model: Any) -> bool:
    """True if a model predicts each label from those before it, so that the first is no target."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    name = type(model).__name__
    if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return name not in _UNSHIFTED
    return LOSS_MAPPING.get(getattr(model, "loss_type", None) or "") is ForCausalLMLoss
