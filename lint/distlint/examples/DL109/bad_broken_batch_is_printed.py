from accelerate import Accelerator


def fit(model, optimizer, loader):
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        try:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        except Exception as error:  # expect: DL109 let the exception end the job
            print(f"step {step} failed: {error}")
