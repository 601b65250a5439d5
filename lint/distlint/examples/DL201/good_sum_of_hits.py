import torch
from accelerate import Accelerator


def evaluate(accelerator: Accelerator, model, loader):
    losses, hits, count = [], 0, 0
    for batch in loader:
        with torch.no_grad():
            output = model(**batch)
        losses.append(accelerator.gather_for_metrics(output.loss.repeat(len(batch["labels"]))))
        guesses = accelerator.gather_for_metrics(output.logits.argmax(-1))
        labels = accelerator.gather_for_metrics(batch["labels"])
        hits += (guesses == labels).sum().item()
        count += len(labels)
    loss = torch.cat(losses).mean()
    return {"loss": loss, "perplexity": torch.exp(loss), "accuracy": hits / count}
