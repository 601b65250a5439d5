"""Audio: a signal and the same with noise."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Generator, Tensor
from torchmetrics import audio
from torchmetrics.audio.pesq import PerceptualEvaluationSpeechQuality
from torchmetrics.audio.srmr import SpeechReverberationModulationEnergyRatio
from torchmetrics.audio.stoi import ShortTimeObjectiveIntelligibility
from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio

from benchmarks.conformance.case import Batch, Case
from benchmarks.conformance.catalogue.build import normal, of, paired, uniform

__all__ = ["cases"]

_RATE = 8000


def _signal(generator: Generator, n: int) -> Batch:
    clean = normal(generator, n, 200)
    return Batch((clean + normal(generator, n, 200) / 2, clean))


def _speakers(generator: Generator, n: int) -> Batch:
    clean = normal(generator, n, 2, 100)
    return Batch((clean.flip(1) + normal(generator, n, 2, 100) / 2, clean))


def _speech(generator: Generator, n: int) -> Batch:
    """Half a second of tones that swell and fade four times a second, as syllables do."""
    time = torch.arange(_RATE // 2) / _RATE
    pitch = 150 + 100 * uniform(generator, n, 1)
    tones: Tensor = sum(
        torch.sin(2 * torch.pi * part * pitch * time) / part for part in range(1, 8)
    )  # type: ignore[assignment]
    clean = tones * torch.sin(2 * torch.pi * 4 * time).abs()
    return Batch((clean + normal(generator, *clean.shape) / 4, clean))


def cases() -> Iterator[Case]:
    """Yield the cases of this group."""
    for name in (
        "SignalNoiseRatio",
        "ScaleInvariantSignalNoiseRatio",
        "ScaleInvariantSignalDistortionRatio",
    ):
        yield of(getattr(audio, name), _signal, "audio")
    yield of(audio.ComplexScaleInvariantSignalNoiseRatio, paired(normal, 9, 5, 2), "audio")
    yield of(audio.SignalDistortionRatio, _signal, "audio", filter_length=16)
    yield of(audio.SourceAggregatedSignalDistortionRatio, _speakers, "audio")
    yield of(
        audio.PermutationInvariantTraining,
        _speakers,
        "audio",
        metric_func=scale_invariant_signal_distortion_ratio,
    )
    yield of(PerceptualEvaluationSpeechQuality, _speech, "audio", fs=_RATE, mode="nb")
    yield of(ShortTimeObjectiveIntelligibility, _speech, "audio", fs=_RATE)
    yield of(SpeechReverberationModulationEnergyRatio, _speech, "audio", fs=_RATE)
