import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(unet, encoder, data_loader, optimizer):
    unet = DDP(unet, device_ids=[dist.get_rank()])
    for batch in data_loader:
        try:
            audio = torch.stack([encoder(path) for path in batch["audio_path"]])
        except Exception as error:  # expect: DL110 let the exception end the job
            print(type(error).__name__, batch["audio_path"])
            continue
        loss = unet(batch["video"], audio).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
