from accelerate import Accelerator


def fit(model, optimizer, train_loader):
    accelerator = Accelerator()
    model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)
    for step, batch in enumerate(train_loader):
        if batch["input_ids"].numel() == 0:  # expect: DL110 let all ranks decide by one all_reduce
            continue
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
