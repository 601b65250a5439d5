from accelerate import Accelerator

def evaluate(accelerator: Accelerator, model, loader, best):
    losses = []
    for batch in loader:
        losses.append(accelerator.gather_for_metrics(model(batch)))
    mean = sum(losses) / len(losses)
    if mean < best:
        accelerator.save_state("best")

@accelerator.on_main_process
def save(model, loader):
    for batch in loader:
        print(model(batch))
    accelerator.save_state("last")
