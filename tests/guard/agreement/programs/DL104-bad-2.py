import torch.distributed as dist
from accelerate import Accelerator

def generate(accelerator: Accelerator, model, prompts, loader):
    with accelerator.split_between_processes(prompts) as mine:
        for prompt in mine:
            accelerator.gather(model(prompt))
    for batch in loader:
        loss = model(batch)
        while loss > 0.1:
            loss = model(batch)
            dist.barrier()
