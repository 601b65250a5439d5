from tqdm import tqdm


def train(accelerator, model, loader, optimizer):
    bar = tqdm(loader, disable=not accelerator.is_local_main_process)
    for step, batch in enumerate(bar):
        loss, aux = model(**batch)
        accelerator.backward(loss + aux)
        optimizer.step()
        optimizer.zero_grad()
        logs = {
            "loss": accelerator.gather(loss).mean().item(),  # expect: DL304 do it once every n
            "aux": accelerator.gather(aux).mean().item(),
        }
        bar.set_postfix(**logs)
        accelerator.log(logs, step=step)
