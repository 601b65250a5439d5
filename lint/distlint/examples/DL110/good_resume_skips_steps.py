from accelerate import Accelerator


def train(model, optimizer, loader, args):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        if args.resume_step is not None and step < args.resume_step:
            continue
        if step >= args.max_steps:
            break
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
