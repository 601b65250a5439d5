"""Video and multimodal."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torchmetrics.multimodal.clip_score import CLIPScore
from torchmetrics.multimodal.lve import LipVertexError
from torchmetrics.video.vmaf import VideoMultiMethodAssessmentFusion

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import normal, of, paired, uniform
from benchmarks.conformance.catalogue.text import sentences

__all__ = ["cases"]


class _Matcher(nn.Module):
    """Stands in for a CLIP model: features are fixed projections of pixels and of letters."""

    config = SimpleNamespace()
    seen: Tensor
    read: Tensor

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("seen", normal(generator, 3 * 8 * 8, 4))
        self.register_buffer("read", normal(generator, 128, 4))

    def get_image_features(self, pixels: Tensor) -> Tensor:
        return pixels.flatten(1) @ self.seen

    def get_text_features(self, ids: Tensor, mask: Tensor) -> Tensor:
        return (self.read[ids] * mask[..., None]).sum(1)


def _prepared(
    text: list[str] | None = None, images: list[Tensor] | None = None, **_: Any
) -> dict[str, Tensor]:
    """Stand in for a CLIP processor."""
    if images is not None:
        return {"pixel_values": torch.stack(images)}
    ids = nn.utils.rnn.pad_sequence(
        [torch.tensor(list(line.encode())) for line in text or []], batch_first=True
    )
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def _model() -> tuple[_Matcher, Any]:
    return _Matcher(), _prepared


def _captioned(generator: Generator, n: int) -> Batch:
    return Batch((uniform(generator, n, 3, 8, 8), sentences(generator, n)[1]))


def cases() -> Iterator[Case]:
    """Yield the cases of these groups."""
    yield of(LipVertexError, paired(normal, 6, 3), "multimodal", mouth_map=[0, 2, 3])
    yield of(CLIPScore, _captioned, "multimodal", model_name_or_path=_model)
    video = paired(uniform, 3, 3, 32, 32)
    yield of(VideoMultiMethodAssessmentFusion, video, "video")
    yield of(VideoMultiMethodAssessmentFusion, video, "video", "features", features=True)
