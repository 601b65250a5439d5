import time
from accelerate import Accelerator

def train(accelerator: Accelerator, model, train_dataloader, val_dataloader):
    saved, best = time.time(), 1e9
    for step, batch in enumerate(train_dataloader):
        accelerator.backward(model(batch))
        if time.time() - saved > 600:
            accelerator.save_state("latest")
            saved = time.time()
    losses = []
    for batch in val_dataloader:
        loss = model(batch).loss
        losses.append(loss.item())
    mean = sum(losses) / len(losses)
    if mean < best:
        accelerator.save_state("best")
