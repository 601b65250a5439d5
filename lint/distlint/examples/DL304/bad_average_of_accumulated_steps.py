from accelerate import Accelerator


def train(args, unet, loader, optimizer):
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
    train_loss = 0.0
    for step, batch in enumerate(loader):
        with accelerator.accumulate(unet):
            loss = unet(batch).loss
            avg_loss = accelerator.gather(loss.repeat(args.batch)).mean()  # expect: DL304 at each
            train_loss += avg_loss.item() / args.accumulate
            accelerator.backward(loss)
            optimizer.step()
        if accelerator.sync_gradients:
            accelerator.log({"train_loss": train_loss}, step=step)
            train_loss = 0.0
