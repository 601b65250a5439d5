"""The page "which tool for which metric", made from the table of metrics: ``python -m distlint.which_tool``."""

from __future__ import annotations

import sys

from distlint.averageable import NAMED

_HEAD = """\
# Which tool for which metric

Every rank of a distributed job evaluates its own share of the data. Three tools make one number of the shares, and
they are not interchangeable:

| tool | what it does | right for |
|---|---|---|
| `self.log(…, sync_dist=True)` | averages the ranks' values | means over examples: losses, accuracy, mean errors |
| a metric object (torchmetrics, torcheval, distmetrics) | adds up counts, then computes | everything else |
| `self.all_gather` (`distmetrics.all_gather_cat`) | brings the predictions together | what no metric object computes |

`sync_dist=True` is right when the mean over the ranks' values is the value of all data: for a mean over examples,
with (nearly) equal numbers of examples on every rank. distlint's rule DL201 reports it on the metrics of the second
table, DL202 reports values of one rank that are not synchronised at all, and DL204 the value of a metric object
where the object should be logged.

The tables hold for torchmetrics, torcheval, scikit-learn and torch, by the name of the function or class without
the words `binary`, `multiclass`, `multilabel`, `windowed`, `binned`, `score`, `loss` and `curve`. Your own go into
`pyproject.toml`:

```toml
[tool.distlint]
averageable = ["package.metrics.hit_rate"]
non-averageable = { "package.metrics.gini" = "it ranks all examples" }
```
"""
_OPTIONS = """\
Options change the answer, and DL201 knows them: `average="micro"` over classes makes an accuracy of F1, precision
and recall; `average="macro"` makes a mean over classes of accuracy, which is no mean over examples;
`squared=False` takes the root of a mean squared error; `average="samples"` and `multidim_average="samplewise"`
average over examples.
"""


def page() -> str:
    """The page in Markdown."""
    averageable, wrong = [], []
    for name, entry in sorted(NAMED.items()):
        shown = name.replace("_", " ")
        tool = f"torchmetrics' `{entry.metric}`" if entry.metric else "`all_gather`, then compute"
        if entry.kind == "averageable":
            averageable.append(f"| {shown} | {entry.reason} |")
        elif entry.kind == "not averageable":
            wrong.append(f"| {shown} | {tool} | {entry.reason} |")
    parts = [
        _HEAD,
        "## `sync_dist=True`\n",
        "\n".join(["| metric | why its mean over ranks is right |", "|---|---|", *averageable]) + "\n",
        "## A metric object, or `all_gather` where there is none\n",
        "\n".join(["| metric | use | why its mean over ranks is wrong |", "|---|---|---|", *wrong]) + "\n",
        _OPTIONS,
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
