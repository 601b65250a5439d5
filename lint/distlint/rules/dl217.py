"""DL217."""

from __future__ import annotations

from collections.abc import Iterator

from distlint.analysis import Analysis
from distlint.analysis.value import Cut
from distlint.api.tokens import COLLECTIVE_TOKENS
from distlint.model import Condition, Example, Report, Rule
from distlint.syntax import Located


class ReductionWithoutGradient(Rule):
    """A loss is made from the result of a collective that lets no gradient through.

    ``torch.distributed.all_reduce`` and ``all_gather`` are not differentiable. Autograd does not complain: it takes
    what came from other ranks for a constant. The loss has the right value, and a wrong gradient:

        mean = features.mean(0)
        dist.all_reduce(mean)
        loss = (mean / dist.get_world_size()).square().sum()
        loss.backward()    # 4 ranks: each rank's gradient lacks what its features do to the other ranks' loss,
                           # which is most of it; after DDP's mean it is 4 times too small

    How to fix: ``torch.distributed.nn.functional.all_reduce`` or ``all_gather``; in Lightning and Fabric
    ``all_gather(…, sync_grads=True)``. Where a contrastive loss needs gradients of this rank's rows alone, put
    them back: ``gathered[rank] = features``. A loss that is summed for a log alone: reduce ``loss.detach()``, and
    call ``backward`` on the rank's own.

    Silent: counts, masks and targets, which have no gradient; what is only divided by; ``no_grad`` and ``detach``;
    gathered lists into which the rank's own part was put back, or which are joined around it.

    When to ignore: the other ranks' part is a constant on purpose.
    """

    code, name, group = "DL217", "reduction-without-gradient", "wrong-value"
    tokens = (COLLECTIVE_TOKENS, (b"reduce", b"gather"), (b"backward", b"training_step", b"compute_loss"))
    bad = (
        Example(
            """\
import torch.distributed as dist
import torch.nn.functional as F

def train(model, loader, optimizer):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
        loss.backward()
        optimizer.step()
""",
            {7: "no gradient"},
        ),
        Example(
            """\
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

class Contrastive(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(512, 128)

    def training_step(self, batch, batch_idx):
        images, texts = batch
        features = F.normalize(self.encoder(images))
        everyone = self.all_gather(features).flatten(0, 1)
        return F.cross_entropy(everyone @ texts.T, torch.arange(len(everyone)))
""",
            {14: "no gradient"},
        ),
    )
    good = (
        """\
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.nn.functional import all_gather

def train(loader, optimizer, rank, world_size):
    model = nn.parallel.DistributedDataParallel(nn.Linear(512, 128))
    for x, mask in loader:
        losses = F.cross_entropy(model(x), mask, reduction="none")
        count = mask.sum()
        dist.all_reduce(count)
        loss = losses.sum() * world_size / count
        everyone = torch.cat(all_gather(model(x)))
        others = [torch.zeros_like(loss) for _ in range(world_size)]
        dist.all_gather(others, losses.mean())
        others[rank] = losses.mean()
        (loss + everyone.std() + torch.stack(others).std()).backward()
        shown = loss.detach()
        dist.all_reduce(shown)
        print(shown / world_size)
        optimizer.step()
""",
        """\
import lightning as L
import torch.nn.functional as F

class Contrastive(L.LightningModule):
    def training_step(self, batch, batch_idx):
        features = self.encoder(batch)
        everyone = self.all_gather(features, sync_grads=True)
        loss = F.mse_loss(everyone.mean(0), batch)
        self.log("loss", self.all_gather(loss).mean())
        return loss
""",
    )

    def query(self, analysis: Analysis) -> Iterator[Report]:
        """Ask of every loss whether a collective lets no gradient through on the way to it."""
        reported: set[int] = set()
        for _, node, loss in analysis.losses():
            if loss.cut is not None and loss.cut.line not in reported:
                reported.add(loss.cut.line)
                yield _report(analysis, node, loss.cut)


def _report(analysis: Analysis, loss: Located, cut: Cut) -> Report:
    message = (
        f"the loss is made from what this {cut.label} returns, which lets no gradient through: "
        "each rank's gradient lacks what it does to the other ranks' loss"
    )
    events = (each.node for each in analysis.events("collective") if each.node.lineno == cut.line)
    trace = ((analysis.index.path, loss.lineno, "loss", analysis.index.text_of(loss)),)
    condition = None if cut.is_sure else Condition("data", "if what is given to it has a gradient")
    return Report(next(events, loss), message, trace, condition)
