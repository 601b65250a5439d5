"""Gathering texts by their ids, beside ``torch.distributed.all_gather_object`` and the bare bytes.

Every way runs in the same processes, in turn. What each must bring is the texts on every rank;
``all_gather_object`` brings lists by rank, so it is timed alone and with what a program does then:
gather the ids too, put the texts in a dict, drop the repeats, sort. To join texts, encode them and
gather the bytes is the least that any way has to do; the bare ``all_gather`` of as many bytes is
the physical limit. Texts of distmetrics are made when they are read: it is timed
without and with reading all of them on every rank.

    python -m benchmarks.gather_samples              # writes benchmarks/results/gather_samples.json
    python -m benchmarks.gather_samples --only times --repeats 5
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from benchmarks.common import bind_to_core, garbage_kept, parser, slowest, versions, write_json
from distmetrics import Communicator, gather_samples
from distmetrics.testing import run
from distmetrics.testing.recording import RecordingCommunicator

TEXTS = 100_000
LENGTHS = (20, 100, 400)  # letters of a text, half to one and a half times that
SAMPLERS = ("strided", "padded", "blocks", "shuffled", "one rank has all")
EXAMPLE = Path(__file__).parent.parent / "examples" / "evaluation_harness.py"


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


def ways(comm: Communicator, length: int, how: str) -> dict[str, Callable[[], Any]]:
    """Return what is timed."""
    ids = dealt(how, TEXTS, comm.rank, comm.world_size)
    texts = [text(index, length) for index in ids]
    numbers = torch.tensor(ids)
    nbytes = sum(len(each.encode()) for each in texts)
    payload = torch.zeros(nbytes, dtype=torch.uint8)
    longest = int(comm.all_reduce(torch.tensor(nbytes), "max"))
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[:nbytes] = payload

    def objects() -> None:
        dist.all_gather_object([None] * comm.world_size, texts)

    def objects_by_id() -> list[str]:
        received: list[Any] = [None] * comm.world_size
        dist.all_gather_object(received, (ids, texts))
        by_id: dict[int, str] = {}
        for theirs, of_theirs in received:
            by_id.update(zip(theirs, of_theirs, strict=True))
        return [by_id[index] for index in sorted(by_id)]

    def joined() -> None:
        run_of_bytes = bytearray("\0".join(texts).encode())
        run_of_bytes.extend(bytes(longest + len(texts) - len(run_of_bytes)))
        comm.all_gather(torch.frombuffer(run_of_bytes, dtype=torch.uint8))

    def ours() -> Any:
        return gather_samples(numbers, texts, comm=comm)

    return {
        "all_gather_object": objects,
        "all_gather_object, by id": objects_by_id,
        "gather_samples": ours,
        "gather_samples, all read": lambda: [*ours().tree],
        "gather_samples, dst=0": lambda: gather_samples(numbers, texts, dst=0, comm=comm),
        "join, encode, all_gather": joined,
        "bare all_gather": lambda: comm.all_gather(padded),
    }


def measure(comm: Communicator, length: int, repeats: int) -> dict[str, Any]:
    """Time each way in turn: wall clock from a barrier on, and this process's own computing."""
    bind_to_core(comm.rank)
    acts = ways(comm, length, "strided")
    wall: dict[str, list[float]] = {way: [] for way in acts}
    busy: dict[str, list[float]] = {way: [] for way in acts}
    for repeat in range(repeats + 1):
        for way, act in acts.items():
            with garbage_kept():
                dist.barrier()
                start, computed = time.perf_counter(), time.process_time()
                act()
                dist.barrier()  # until the last rank has its texts
                if repeat:
                    wall[way].append(time.perf_counter() - start)
                    busy[way].append(time.process_time() - computed)
    recording = RecordingCommunicator(comm)
    ways(recording, length, "strided")["gather_samples"]()
    payload = sum(len(text(index, length).encode()) for index in range(TEXTS))
    del recording.calls[0]  # of the bare way's preparation
    return {"wall": wall, "busy": busy, "ratio": came(recording) / payload}


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


def harness(comm: Communicator) -> dict[str, float]:
    """Return the scores of the evaluation harness of examples/."""
    spec = importlib.util.spec_from_file_location("evaluation_harness", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scores: dict[str, float] = module.evaluate(comm)
    return scores


def times(world_size: int, repeats: int) -> list[dict[str, Any]]:
    """Measure texts of each length; a way took as long as its slowest rank."""
    table = []
    for length in LENGTHS:
        ranks = run(world_size, measure, length, repeats, backend="gloo")
        row: dict[str, Any] = {"letters": length, "world_size": world_size, "texts": TEXTS}
        print(f"\n{TEXTS} texts of about {length} letters, {world_size} ranks, ms: median (least)")
        row["bytes for a byte of text"] = ranks[0]["ratio"]
        print(f"  bytes that come for a byte of text: {ranks[0]['ratio']:.3f}")
        for way in ranks[0]["wall"]:
            wall = slowest([rank["wall"][way] for rank in ranks])
            busy = [sum(each) for each in zip(*(rank["busy"][way] for rank in ranks), strict=True)]
            row[way] = {"median": statistics.median(wall), "least": min(wall)}
            row[way]["computing"] = statistics.median(busy)
            ms = {key: f"{1e3 * value:7.1f}" for key, value in row[way].items()}
            print(f"  {way:26} {ms['median']} ({ms['least']})  computing {ms['computing']}")
        table.append(row)
    return table


def hashes() -> dict[str, Any]:
    """Compare bytes and results of 1 to 8 ranks and several samplers; and the harness's scores."""
    rows = []
    for world_size in range(1, 9):
        backend: Literal["gloo", "threads"] = "gloo" if world_size in (2, 4) else "threads"
        for how in SAMPLERS:
            ranks = run(world_size, bytes_and_hash, how, 100, 20_000, backend=backend)
            assert len({rank["sha256"] for rank in ranks}) == 1
            row = {"world_size": world_size, "sampler": how, "backend": backend, **ranks[0]}
            row["ratio"] = row["came"] / row["payload"]
            rows.append(row)
            said = f"{row['ratio']:.3f} bytes a byte, {row['sha256'][:12]}"
            print(f"{world_size} ranks, {how}: {said}")
    scores = [run(world_size, harness) for world_size in range(1, 9)]
    alike = {json.dumps(each) for ranks in scores for each in ranks}
    print(f"results: {len({row['sha256'] for row in rows})}; scores of the harness: {len(alike)}")
    return {"rows": rows, "scores": json.loads(alike.pop()), "different_scores": len(alike) + 1}


def main() -> None:
    """Run, print, write JSON."""
    ask = parser(__doc__)
    ask.add_argument("--repeats", type=int, default=9)
    ask.add_argument("--world-size", type=int, default=4)
    ask.add_argument("--only", choices=["times", "hashes"])
    args = ask.parse_args()
    result: dict[str, Any] = {**versions(), "cores": os.cpu_count()}
    if args.only != "times":
        result["hashes"] = hashes()
    if args.only != "hashes":
        result["load"] = os.getloadavg()[0]
        result["times"] = times(args.world_size, args.repeats)
    if args.only is None:
        write_json("gather_samples.json", result)


if __name__ == "__main__":
    main()
