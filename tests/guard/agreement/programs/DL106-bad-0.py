import torch.distributed as dist

def train(model, batches, trainer):
    for batch in batches:
        try:
            loss = model(batch)
        except RuntimeError:
            dist.barrier()
            continue
        dist.all_reduce(loss)

def fit(trainer, model):
    try:
        trainer.fit(model)
    except Exception:
        rescue(trainer)
        raise

def rescue(trainer):
    trainer.save_checkpoint("last.ckpt")
