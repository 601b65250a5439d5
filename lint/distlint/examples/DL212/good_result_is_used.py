from accelerate import Accelerator


def evaluate(model, loader):
    accelerator = Accelerator()
    model, loader = accelerator.prepare(model, loader)
    total = sum(model(**batch).loss.detach() for batch in loader)
    total = accelerator.reduce(total, reduction="sum")
    accelerator.log({"eval_loss": total.item()})
