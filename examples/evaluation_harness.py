"""Evaluate a tiny language model on three tasks: the same scores to the last digit on any ranks.

python examples/evaluation_harness.py
python examples/evaluation_harness.py --ranks 4
"""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from distmetrics import gather_samples
from distmetrics.testing import run

LETTERS = "abcdefghijklmnopqrstuvwxyz .\n"
STOP = LETTERS.index("\n")
SAMPLES = 61  # of each task; no number of ranks from 2 to 8 divides it


class TinyModel(nn.Module):
    """Predicts the next letter from the last two; weights by chance, the same on every rank."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(len(LETTERS), 16, dtype=torch.float64)
        self.mix = nn.Linear(32, len(LETTERS), dtype=torch.float64)
        source = torch.Generator().manual_seed(7)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4, generator=source)

    def forward(self, tokens):
        """Return the log-probabilities of what follows each letter but the first."""
        pairs = self.table(tokens).unfold(0, 2, 1).flatten(1)
        return self.mix(pairs).log_softmax(-1)


def encode(text):
    """Return the numbers of letters."""
    return torch.tensor([LETTERS.index(letter) for letter in text])


def log_likelihood(model, context, text):
    """Return the log-probability of a text that follows a context."""
    tokens = encode(context + text)
    steps = model(tokens[:-1])[-len(text) :]
    return steps.gather(1, tokens[-len(text) :, None]).sum().item()


def generate(model, prompt, longest=12):
    """Return what the model writes, always the most probable letter."""
    tokens = encode(prompt)
    while len(tokens) < len(prompt) + longest:
        token = model(tokens[-2:])[-1].argmax()
        if token == STOP:
            break
        tokens = torch.cat([tokens, token[None]])
    return "".join(LETTERS[token] for token in tokens[len(prompt) :])


def by_chance(seed, length):
    """Return some text, for a seed always the same."""
    source = torch.Generator().manual_seed(seed)
    return "".join(LETTERS[token] for token in torch.randint(27, (length,), generator=source))


# One sample at a time: in a batch its numbers would depend, in their last digit, on the others.
def choose(model, index):
    """Multiple choice: which of four words is the most probable."""
    question, *words = (by_chance(5 * index + number, 6) for number in range(5))
    scores = [log_likelihood(model, question, word) / len(word) for word in words]
    return {"scores": scores, "right": scores.index(max(scores)) == index % 4}


def complete(model, index):
    """Exact match: whether what the model writes is the answer."""
    prompt = by_chance(index, 4)
    answer = generate(model, prompt) if index % 3 else "no word"
    text = generate(model, prompt)
    return {"text": text, "right": text == answer}


def read(model, index):
    """Perplexity: the log-probability of a text, and how many letters it has."""
    text = by_chance(index, 3 + 7 * index % 40)
    return {"log_likelihood": log_likelihood(model, "\n\n", text), "letters": len(text)}


TASKS = {"choices": choose, "generation": complete, "perplexity": read}


def evaluate(comm):
    """Return the scores, on every rank."""
    model = TinyModel()
    # As loaders deal the data: a few samples twice, so that all ranks have equally many.
    dealt = DistributedSampler(range(SAMPLES), comm.world_size, comm.rank, shuffle=True)
    mine = list(dealt)
    results = {}
    with torch.no_grad():
        for name, task in TASKS.items():
            samples = [task(model, index) for index in mine]
            results[name] = gather_samples(mine, samples, expected=SAMPLES, comm=comm).tree
    log_likelihoods = [sample["log_likelihood"] for sample in results["perplexity"]]
    letters = sum(sample["letters"] for sample in results["perplexity"])
    return {
        "choices": sum(sample["right"] for sample in results["choices"]) / SAMPLES,
        "best choice": sum(max(sample["scores"]) for sample in results["choices"]) / SAMPLES,
        "generation": sum(sample["right"] for sample in results["generation"]) / SAMPLES,
        "perplexity": math.exp(-sum(log_likelihoods) / letters),
    }


if __name__ == "__main__":
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--ranks", type=int, default=1)
    ranks = ask.parse_args().ranks
    for score, value in run(ranks, evaluate, backend="gloo")[0].items():
        print(f"{score}: {value!r}")
