"""Tiny models of Hugging Face, data for them, and what one process gets out of it by hand; imported by every rank."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from tests.integrations.modules import elastic

WORDS, CLASSES, LONGEST, PAD = 20, 3, 7, 0
KINDS = ("classifier", "regression", "tokens", "causal", "gpt2", "seq2seq")
CAUSAL = ("causal", "gpt2")
WITH_TOKENS = ("tokens", "causal", "gpt2", "seq2seq")


def model_of(kind: str) -> Any:
    """Return a model with the same random weights everywhere."""
    import transformers as hf

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    words = {"vocab_size": WORDS, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
    if kind in ("classifier", "regression", "tokens"):
        labels = 1 if kind == "regression" else CLASSES
        bert = hf.BertConfig(**sizes, **words, num_labels=labels, initializer_range=1.0)
        return (hf.BertForTokenClassification if kind == "tokens" else hf.BertForSequenceClassification)(bert)
    if kind == "causal":
        return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, **words, initializer_range=0.7))
    if kind == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=1, n_head=2, n_embd=8, initializer_range=0.7, **words))
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    t5 = hf.T5Config(**words, **sizes, decoder_start_token_id=PAD, initializer_factor=2.0)
    return hf.T5ForConditionalGeneration(t5)


def samples(kind: str, count: int) -> list[dict[str, Any]]:
    """Ragged rows; of a language model some labels are masked, of every fourth row all."""
    generator = torch.Generator().manual_seed(1)
    rows: list[dict[str, Any]] = []
    for index in range(count):
        length = int(torch.randint(2, LONGEST + 1, (), generator=generator))
        words = torch.randint(3, WORDS, (length,), generator=generator)
        row: dict[str, Any] = {"input_ids": words}
        if kind == "classifier":
            row["labels"] = int(torch.randint(CLASSES, (), generator=generator))
        elif kind == "regression":
            row["labels"] = float(torch.randn((), generator=generator))
        else:
            labels = words % CLASSES if kind == "tokens" else words.clone()
            labels[torch.rand(length, generator=generator) < 0.3] = -100
            if index % 4 == 0:
                labels[:] = -100
            row["labels"] = labels
        rows.append(row)
    return rows


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Fill up to the longest row of the batch."""

    def filled(name: str, filler: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], True, filler)

    batch = {"input_ids": filled("input_ids", PAD)}
    batch["attention_mask"] = (batch["input_ids"] != PAD).long()
    if isinstance(rows[0]["labels"], Tensor):
        batch["labels"] = filled("labels", -100)
    else:
        batch["labels"] = torch.tensor([row["labels"] for row in rows])
    return batch


class Stream(IterableDataset[Any]):
    """Rows without a length."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def by_hand(kind: str, rows: list[dict[str, Any]], smoothing: float = 0.0) -> dict[str, float]:
    """Return the loss and the counts of one process that has all rows in one batch."""
    batch = collate(rows)
    with torch.no_grad():
        logits = model_of(kind).eval()(**batch).logits
    labels = batch["labels"]
    if kind == "regression":
        return {"loss": float(((logits[:, 0] - labels) ** 2).mean())}
    if kind in CAUSAL:
        logits, labels = logits[:, :-1], labels[:, 1:]
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).double(), labels.reshape(-1), label_smoothing=smoothing
    )
    counts = labels != -100
    right = (logits.argmax(-1) == labels) & counts
    return {"loss": float(loss), "right": int(right.sum()), "seen": int(counts.sum())}


def update(kind: str) -> Any:
    """Return the update of counts of right and of all labels that count."""

    def add(metrics: Any, outputs: Any, inputs: Any) -> None:
        logits, labels = outputs.logits, inputs["labels"]
        logits = logits[0] if isinstance(logits, tuple) else logits
        if kind in CAUSAL:
            logits, labels = logits[:, :-1], labels[:, 1:]
        counts = labels != -100
        metrics["right"].update(total=((logits.argmax(-1) == labels) & counts).sum())
        metrics["seen"].update(total=counts.sum())

    return add


def compute_metrics(kind: str) -> Any:
    """Return what users of Hugging Face alone pass: it gets all predictions."""

    def count(prediction: Any) -> dict[str, int]:
        logits, labels = prediction.predictions, prediction.label_ids
        logits = logits[0] if isinstance(logits, tuple) else logits
        if kind in CAUSAL:
            logits, labels = logits[:, :-1], labels[:, 1:]
        counts = labels != -100
        return {"right": int(((logits.argmax(-1) == labels) & counts).sum()), "seen": int(counts.sum())}

    return count


def counters() -> dict[str, Any]:
    from distmetrics import from_function

    return {name: from_function(_total, reduce={"total": "sum"}) for name in ("right", "seen")}


def _total(sums: Any) -> Any:
    return sums["total"]


BESIDE = ("compute_metrics", "model")  # what is no argument of TrainingArguments


def trainer_of(kind: str, rows: Any, *, batch_size: int = 4, kind_of_trainer: Any = None, **options: Any) -> Any:
    """Return a trainer as users make it."""
    from transformers import Trainer, TrainingArguments

    beside = {name: options.pop(name) for name in BESIDE if name in options}
    options = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False, **options}
    arguments = TrainingArguments(tempfile.mkdtemp(), per_device_eval_batch_size=batch_size, **options)
    beside = {"model": model_of(kind), "data_collator": collate, "eval_dataset": rows, **beside}
    return (kind_of_trainer or Trainer)(args=arguments, **beside)


def join(comm: Any) -> None:
    """Be a rank as torchrun starts it."""
    warnings.simplefilter("ignore")
    if comm.world_size > 1:
        os.environ |= elastic(comm)
