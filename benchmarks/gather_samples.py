"""Gathering texts by their ids, beside ``torch.distributed.all_gather_object``.

Every way runs in the same processes, in turn, and brings the texts to every rank.
``all_gather_object`` brings lists by rank: with it a program gathers the ids too, puts the texts in
a dict, drops the repeats, sorts. Texts of distmetrics are made when they are read: it is timed
without and with reading all of them on every rank.

    python -m benchmarks.gather_samples              # writes benchmarks/results/gather_samples.json
"""

from __future__ import annotations

import hashlib
import os
import random
import statistics
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist

from benchmarks.common import (
    arguments,
    bind_to_core,
    slowest,
    spans_in_turns,
    versions,
    write_json,
)
from distmetrics import Communicator, gather_samples
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator

TEXTS = 100_000
LENGTHS = (20, 100, 400)  # letters of a text, half to one and a half times that
SAMPLERS = ("strided", "padded", "blocks", "shuffled", "one rank has all")
RANKS = 4  # of what is timed


def text(index: int, length: int) -> str:
    """Return the text of a sample: letters by chance, some of them of two bytes."""
    source = random.Random(index)
    count = source.randint(length // 2, length + length // 2)
    return f"{index} " + "".join(source.choices("abcdefghij klmnopqrstuvwxyzäé", k=count))


def dealt(how: str, count: int, rank: int, world_size: int) -> list[int]:
    """Return the samples of a rank."""
    if how == "strided":
        return [*range(rank, count, world_size)]
    if how == "padded":  # as torch's DistributedSampler does
        total = -(-count // world_size) * world_size
        return [index % count for index in range(rank, total, world_size)]
    if how == "blocks":
        size = -(-count // world_size)
        return [*range(rank * size, min(count, (rank + 1) * size))]
    if how == "one rank has all":
        return [*range(count)] if rank == 0 else []
    shuffled = random.Random(0).sample(range(count), count)
    return shuffled[rank::world_size]


def ways(comm: Communicator, length: int) -> dict[str, Callable[[], Any]]:
    """Return what is timed."""
    ids = dealt("strided", TEXTS, comm.rank, comm.world_size)
    texts = [text(index, length) for index in ids]
    numbers = torch.tensor(ids)

    def objects_by_id() -> list[str]:
        received: list[Any] = [None] * comm.world_size
        dist.all_gather_object(received, (ids, texts))
        by_id: dict[int, str] = {}
        for theirs, of_theirs in received:
            by_id.update(zip(theirs, of_theirs, strict=True))
        return [by_id[index] for index in sorted(by_id)]

    def ours() -> Any:
        return gather_samples(numbers, texts, comm=comm)

    return {
        "all_gather_object, by id": objects_by_id,
        "gather_samples": ours,
        "gather_samples, all read": lambda: [*ours().tree],
    }


def measure(comm: Communicator, length: int, repeats: int) -> dict[str, Any]:
    """Time each way in turn, and count the bytes that come."""
    bind_to_core(comm.rank)
    acts = ways(comm, length)
    spans = spans_in_turns(acts, repeats, block=min(3, repeats), meet=dist.barrier)
    recording = RecordingCommunicator(comm)
    ways(recording, length)["gather_samples"]()
    payload = sum(len(text(index, length).encode()) for index in range(TEXTS))
    return {"spans": spans, "ratio": came(recording) / payload}


def came(recording: RecordingCommunicator) -> int:
    """Return the bytes that came to this rank, its own included."""
    times = {"all_gather": recording.world_size, "broadcast": 1}
    return sum(call.nbytes * times[call.op] for call in recording.calls)


def bytes_and_hash(comm: Communicator, how: str, length: int, count: int) -> dict[str, Any]:
    """Return the bytes that came to this rank, those of the texts, and the result's SHA-256."""
    ids = dealt(how, count, comm.rank, comm.world_size)
    recording = RecordingCommunicator(comm)
    tree = {"text": [text(index, length) for index in ids]} if ids else []
    gathered = gather_samples(ids, tree, expected=count, comm=recording)
    assert gathered is not None
    whole = "\n".join(gathered.tree["text"]).encode()
    return {
        "came": came(recording),
        "payload": len(whole) - count + 1,
        "dropped": gathered.dropped,
        "sha256": hashlib.sha256(repr([*map(int, gathered.ids)]).encode() + whole).hexdigest(),
    }


def times(repeats: int) -> list[dict[str, Any]]:
    """Measure texts of each length; a way took as long as its slowest rank."""
    table = []
    for length in LENGTHS:
        ranks = run(RANKS, measure, length, repeats, backend="gloo")
        row: dict[str, Any] = {"letters": length, "world_size": RANKS, "texts": TEXTS}
        row["bytes for a byte of text"] = ranks[0]["ratio"]
        print(f"\n{TEXTS} texts of about {length} letters, {RANKS} ranks, median (least)")
        print(f"  bytes that come for a byte of text: {ranks[0]['ratio']:.3f}")
        for way in ranks[0]["spans"]:
            taken = slowest([rank["spans"][way] for rank in ranks])
            row[way] = {"median": statistics.median(taken) / 1e3, "least": min(taken) / 1e3}
            print(f"  {way:26} {statistics.median(taken):7.1f} ms ({min(taken):.1f})")
        table.append(row)
    return table


def hashes(worlds: int) -> dict[str, Any]:
    """Compare bytes and results of 1 to 8 ranks and several samplers."""
    rows = []
    for world_size in range(1, worlds + 1):
        backend: Literal["gloo", "threads"] = "gloo" if world_size in (2, 4) else "threads"
        for how in SAMPLERS:
            ranks = run(world_size, bytes_and_hash, how, 100, 20_000, backend=backend)
            assert len({rank["sha256"] for rank in ranks}) == 1
            row = {"world_size": world_size, "sampler": how, "backend": backend, **ranks[0]}
            row["ratio"] = row["came"] / row["payload"]
            rows.append(row)
            said = f"{row['ratio']:.3f} bytes a byte, {row['sha256'][:12]}"
            print(f"{world_size} ranks, {how}: {said}")
    print(f"different results: {len({row['sha256'] for row in rows})}")
    return {"rows": rows}


def main() -> None:
    """Run, print, write JSON."""
    args = arguments(__doc__, repeats=(9, 1), worlds=(8, 2))
    result: dict[str, Any] = {**versions(), "cores": os.cpu_count()}
    result["hashes"] = hashes(args.worlds)
    result["load"] = os.getloadavg()[0]
    result["times"] = times(args.repeats)
    if args.is_whole:
        write_json("gather_samples.json", result)


if __name__ == "__main__":
    main()
