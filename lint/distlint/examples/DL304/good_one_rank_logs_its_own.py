import wandb


def train(accelerator, model, loader, optimizer):
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.is_main_process:
            wandb.log({"loss": loss.item()}, step=step)
