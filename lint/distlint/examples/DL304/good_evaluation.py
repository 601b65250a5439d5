def evaluate(accelerator, model, loader):
    model.eval()
    for batch in loader:
        loss = model(**batch).loss
        accelerator.print(accelerator.gather(loss).mean().item())


def train(accelerator, model, loader, val_loader, optimizer):
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
    evaluate(accelerator, model, val_loader)
