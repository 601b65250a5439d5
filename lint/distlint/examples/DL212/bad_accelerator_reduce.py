from accelerate import Accelerator


def evaluate(model, loader):
    accelerator = Accelerator()
    model, loader = accelerator.prepare(model, loader)
    total = sum(model(**batch).loss.detach() for batch in loader)
    accelerator.reduce(total, reduction="sum")  # expect: DL212 reduce returns its result, which
    accelerator.log({"eval_loss": total.item()})
