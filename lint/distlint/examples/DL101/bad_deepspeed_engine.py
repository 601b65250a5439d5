import deepspeed
import torch.distributed as dist


def fit(model, config, loader, folder):
    engine, optimizer, _, _ = deepspeed.initialize(model=model, config=config)
    for step, batch in enumerate(loader):
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        if step % 1000 == 0 and dist.get_rank() == 0:
            engine.save_checkpoint(folder, tag=step)  # expect: DL101 only rank 0 reaches this
