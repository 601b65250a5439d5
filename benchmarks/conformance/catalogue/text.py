"""Text: sentences of few words, and copies with mistakes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn
from torchmetrics import text
from torchmetrics.text.bert import BERTScore

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import integers, of, uniform

__all__ = ["cases", "sentences"]

_WORDS = (
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "dogs",
    "ran",
    "far",
    "from",
    "here",
    "while",
    "nobody",
    "saw",
)


def sentences(generator: Generator, n: int) -> tuple[list[str], list[str]]:
    """Return n sentences with mistakes, and n without."""
    wrong, right = [], []
    for _ in range(n):
        length = 4 + int(integers(generator, 6, 1))
        words = [_WORDS[index] for index in integers(generator, len(_WORDS), length).tolist()]
        slips = (uniform(generator, length) < 0.25).tolist()
        right.append(" ".join(words))
        wrong.append(
            " ".join("oops" if slip else word for word, slip in zip(words, slips, strict=True))
        )
    return wrong, right


def _one_reference(generator: Generator, n: int) -> Batch:
    return Batch(sentences(generator, n))


def _references(generator: Generator, n: int) -> Batch:
    wrong, right = sentences(generator, n)
    others, _ = sentences(generator, n)
    return Batch((wrong, [list(pair) for pair in zip(right, others, strict=True)]))


def _questions(generator: Generator, n: int) -> Batch:
    wrong, right = sentences(generator, n)
    names = [str(number) for number in integers(generator, 10**6, n).tolist()]
    preds = [{"prediction_text": said, "id": name} for said, name in zip(wrong, names, strict=True)]
    target = [
        {"answers": {"answer_start": [0], "text": [answer]}, "id": name}
        for answer, name in zip(right, names, strict=True)
    ]
    return Batch((preds, target))


def _tokens(generator: Generator, n: int) -> Batch:
    return Batch((torch.randn(n, 6, 5, generator=generator), integers(generator, 5, n, 6)))


def _numbered(words: list[str], length: int) -> dict[str, Tensor]:
    """Tokenize: every word is its number, 0 is padding."""
    ids = torch.zeros(len(words), length, dtype=torch.long)
    for row, sentence in enumerate(words):
        found = [
            1 + (_WORDS.index(word) if word in _WORDS else len(_WORDS)) for word in sentence.split()
        ][:length]
        ids[row, : len(found)] = torch.tensor(found)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def _embedded(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    embedded: Tensor = model(batch["input_ids"])
    return embedded


def _embedding_score() -> BERTScore:
    """Construct a BERTScore whose model is a small seeded embedding: no weights are downloaded."""
    weights = torch.randn(len(_WORDS) + 2, 8, generator=torch.Generator().manual_seed(0))
    model = nn.Embedding(len(weights), 8, _weight=weights)
    return BERTScore(
        model=model, user_tokenizer=_numbered, user_forward_fn=_embedded, max_length=16
    )


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    for name in ("BLEUScore", "CHRFScore", "SacreBLEUScore", "TranslationEditRate"):
        yield of(getattr(text, name), _references, "text")
    for name in ("CharErrorRate", "EditDistance", "ExtendedEditDistance", "MatchErrorRate"):
        yield of(getattr(text, name), _one_reference, "text")
    for name in ("WordErrorRate", "WordInfoLost", "WordInfoPreserved"):
        yield of(getattr(text, name), _one_reference, "text")
    yield of(text.SacreBLEUScore, _references, "text", "intl", tokenize="intl")
    yield of(text.EditDistance, _one_reference, "text", "none", reduction="none")
    for name in ("CHRFScore", "TranslationEditRate"):
        yield of(
            getattr(text, name), _references, "text", "sentences", return_sentence_level_score=True
        )
    yield of(
        text.ExtendedEditDistance,
        _one_reference,
        "text",
        "sentences",
        return_sentence_level_score=True,
    )
    yield of(text.Perplexity, _tokens, "text")
    # rougeLsum splits sentences with data that would be downloaded
    yield of(text.ROUGEScore, _one_reference, "text", rouge_keys=("rouge1", "rouge2", "rougeL"))
    yield of(
        text.ROUGEScore,
        _references,
        "text",
        "avg",
        rouge_keys=("rouge1", "rougeL"),
        accumulate="avg",
    )
    yield of(text.SQuAD, _questions, "text")
    yield Case("BERTScore", "text", _embedding_score, _one_reference)
    yield Case("BERTScore[references]", "text", _embedding_score, _references)
