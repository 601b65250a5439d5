"""The most memory that ``trainer.evaluate()`` takes, over 1 and 50 times the data.

    python -m benchmarks.hf_memory          # table, and JSON in benchmarks/results

A tiny causal language model on one CPU process each; the peak is the process's own resident memory
while it evaluates, above what it had before. Hugging Face's own ``compute_metrics`` is beside it:
it needs all logits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from typing import Any

import psutil
import torch
from torch.utils.data import Dataset

from benchmarks.common import parser, versions, write_json

ROWS, FACTOR, LENGTH, WORDS, BATCH = 64, 50, 32, 512, 16
WAYS = ("attached", "compute_metrics")


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows that are made when they are read, so that data takes no memory."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(place)
        words = torch.randint(3, WORDS, (LENGTH,), generator=generator)
        return {"input_ids": words, "labels": words}


def right(predictions: Any, labels: Any) -> Any:
    """Return how many labels are what the model thinks most likely."""
    return (predictions[:, :-1].argmax(-1) == labels[:, 1:]).sum()


def update(metrics: Any, outputs: Any, inputs: Any) -> None:
    """Count the right labels of a batch."""
    metrics["right"].update(right=right(outputs.logits, inputs["labels"]))


def make_trainer(way: str, count: int) -> Any:
    """Return a trainer over so many rows, with metrics either way."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from distmetrics import from_function
    from distmetrics.integrations.transformers import attach

    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=WORDS, intermediate_size=32, **sizes)
    torch.manual_seed(0)
    options: dict[str, Any] = {}
    if way == "compute_metrics":
        options["compute_metrics"] = lambda p: {"right": right(p.predictions, p.label_ids)}
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_eval_batch_size=BATCH,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = LlamaForCausalLM(config)
    trainer = Trainer(model=model, args=arguments, eval_dataset=Rows(count), **options)
    if way == "attached":
        metric = from_function(lambda sums: sums["right"], reduce={"right": "sum"})
        attach(trainer, {"right": metric}, update=update)
    return trainer


def measure(way: str, count: int) -> dict[str, Any]:
    """Return the peak of one evaluation in this process, in MiB, and what it says."""
    process = psutil.Process()
    make_trainer(way, BATCH).evaluate()  # what is loaded and allocated once
    trainer = make_trainer(way, count)
    start = process.memory_info().rss
    seen, done = [start], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            seen.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        metrics = trainer.evaluate()
    finally:
        done.set()
        watcher.join()
    memory = {"start_mib": round(start / 2**20, 1), "peak_mib": round(max(seen) / 2**20, 1)}
    values = {"right": int(metrics["eval_right"]), "loss": metrics["eval_loss"]}
    return {"way": way, "rows": count, **memory, **values}


def main() -> None:
    """Measure each way and size in a process of its own."""
    ask = parser(__doc__)
    ask.add_argument("--one", nargs=2, metavar=("WAY", "ROWS"), help="in this process, as JSON")
    chosen = ask.parse_args().one
    if chosen:
        print(json.dumps(measure(chosen[0], int(chosen[1]))))
        return
    results = []
    for way in WAYS:
        for count in (ROWS, ROWS * FACTOR):
            command = [sys.executable, "-m", "benchmarks.hf_memory", "--one", way, str(count)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
            print(results[-1])
    write_json("hf_memory.json", {**versions("transformers"), "results": results})


if __name__ == "__main__":
    main()
