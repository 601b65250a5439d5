import torch
import torch.distributed as dist


def work(rank, world_size, build):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model = build().cuda(0)  # expect: DL001 GPU 0
    return model, device
