import torch
import torch.distributed.checkpoint as dcp
from torch.distributed import get_rank


def save(model, folder):
    if get_rank() == 0:
        print("writing to", folder)
    else:
        return
    state = {"model": model.state_dict()}
    dcp.save(state, checkpoint_id=folder)  # expect: DL101 only rank 0 reaches this save
    torch.save(state, f"{folder}/copy.pt")
