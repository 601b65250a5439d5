from accelerate import Accelerator


def train(model, optimizer, loader, epochs, folder):
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(epochs):
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.is_main_process:
            print(f"epoch {epoch} is done")
            accelerator.save_state(f"{folder}/{epoch}")  # expect: DL101 only rank 0 reaches this
