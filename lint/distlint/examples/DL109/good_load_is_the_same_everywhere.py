import torch
import torch.distributed as dist


def resume(model, path):
    try:
        state = torch.load(path, map_location="cpu")
        model.load_state_dict(state["model"])
        dist.barrier()
        return state["epoch"] + 1
    except FileNotFoundError:
        print("starting from scratch")
        return 0
