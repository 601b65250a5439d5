"""Draw which samples two ranks are given, as their loaders say.

``python -m benchmarks.samples_picture > docs/samples.svg``
"""

from __future__ import annotations

from typing import Any

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from distmetrics.data import exact
from distmetrics.testing import run

SAMPLES, RANKS, BATCH_SIZE = 597, 2, 64
DATA: Any = range(SAMPLES)  # a sample is its own number
Batches = list[list[int]]

LEFT, TOP, PER_SAMPLE = 66, 34, 2.25
BAR, ROW, PANEL = 30, 36, 116  # heights: of a batch, with the gap below it, of one loader's ranks
WIDTH, HEIGHT = 812, TOP + 3 * PANEL - 36
ONCE, AGAIN = "#9ecae1", "#d94801"


def by_sampler() -> list[Batches]:
    """Return each rank's batches with torch's DistributedSampler."""
    ranks = []
    for rank in range(RANKS):
        sampler: DistributedSampler[int] = DistributedSampler(DATA, RANKS, rank, shuffle=False)
        ranks.append(list(BatchSampler(sampler, BATCH_SIZE, drop_last=False)))
    return ranks


def by_accelerate() -> list[Batches]:
    """Return each rank's batches as Accelerate and Hugging Face's Trainer deal them out."""
    whole = BatchSampler(SequentialSampler(DATA), BATCH_SIZE, drop_last=False)
    return [list(BatchSamplerShard(whole, RANKS, rank)) for rank in range(RANKS)]


def by_exact() -> list[Batches]:
    """Return each rank's batches with our loader."""
    loader: Any = DataLoader(DATA, batch_size=BATCH_SIZE, collate_fn=list)
    return run(RANKS, lambda comm: list(exact(loader, comm)))


def pieces(ranks: list[Batches]) -> list[list[list[tuple[list[int], bool]]]]:
    """Cut every batch where repeats begin: its samples, and whether they are repeats."""
    seen: set[int] = set()
    cut: list[list[list[tuple[list[int], bool]]]] = [[] for _ in ranks]
    for step in range(max(map(len, ranks))):
        for rank, batches in enumerate(ranks):
            batch = batches[step] if step < len(batches) else []
            new = [sample for sample in batch if sample not in seen]
            old = [sample for sample in batch if sample in seen]
            seen.update(new)
            cut[rank].append([part for part in ((new, False), (old, True)) if part[0]])
    return cut


def label(samples: list[int]) -> str:
    """Return which samples these are."""
    first, last = samples[0], samples[-1]
    if len(samples) == 1:
        return str(first)
    return f"{first}–{last}" if last - first < len(samples) else f"{first}, {samples[1]} … {last}"


def text(x: float, y: float, words: str, style: str = "") -> str:
    """Return words at a place."""
    return f'<text x="{x:g}" y="{y:g}" {style}>{words}</text>'


def panel(y: float, name: str, ranks: list[Batches]) -> list[str]:
    """Return the drawing of what one loader deals out."""
    count = sum(len(batch) for batches in ranks for batch in batches)
    repeats = count - SAMPLES
    verdict = f"{count} are counted, {repeats} {'is a repeat' if repeats == 1 else 'are repeats'}"
    if not repeats:
        verdict = f"{count} are counted, each once"
    drawn = [text(LEFT, y - 8, f'<tspan font-weight="bold">{name}</tspan>: {verdict}')]
    for rank, batches in enumerate(pieces(ranks)):
        row, x = y + rank * ROW, float(LEFT)
        drawn.append(text(LEFT - 8, row + 20, f"rank {rank}", 'text-anchor="end"'))
        for batch in batches:
            for samples, again in batch:
                width, colour = max(len(samples) * PER_SAMPLE, 4), AGAIN if again else ONCE
                box = f'x="{x:g}" y="{row:g}" width="{width:g}" height="{BAR}" fill="{colour}"'
                drawn.append(f"<rect {box}/>")
                words, place = label(samples) + " again" * again, x + width / 2
                style = 'text-anchor="middle" font-size="11"' + ' fill="white"' * again
                if width <= 30:  # too narrow for its label
                    place, style = x + width + 6, f'font-size="11" fill="{colour}"'
                drawn.append(text(place, row + 19, words, style))
                x += width
            x += 2  # between batches
    return drawn


def picture() -> str:
    """Return the whole picture, as SVG."""
    loaders = {
        "DistributedSampler (plain torch, Fabric, Lightning, Ray)": by_sampler(),
        "Accelerate, Hugging Face’s Trainer": by_accelerate(),
        "distmetrics.data.exact": by_exact(),
    }
    title = f"Which of {SAMPLES} samples {RANKS} ranks are given, in batches of {BATCH_SIZE}"
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    font = 'font-family="Helvetica, Arial, sans-serif" font-size="14"'
    shown = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {size} {font}>',
        f"<title>{title}</title>",
        f'<rect {size} fill="white"/>',
    ]
    for place, (name, ranks) in enumerate(loaders.items()):
        shown += panel(TOP + place * PANEL, name, ranks)
    return "\n".join([*shown, "</svg>", ""])


if __name__ == "__main__":
    print(picture(), end="")
