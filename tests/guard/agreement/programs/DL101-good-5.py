import torch.distributed as dist
from megatron.core import parallel_state

def step(x, loss, mesh):
    if mesh.get_local_rank("pp") == 0:
        dist.all_reduce(x, group=mesh["dp"].get_group())
    if parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0:
        dist.all_reduce(loss, group=parallel_state.get_data_parallel_group())
