import torch.distributed as dist
from megatron.core import parallel_state

def step(x, loss, mesh):
    if mesh.get_local_rank("tp") == 0:
        dist.all_reduce(x, group=mesh.get_group("tp"))
    if parallel_state.get_tensor_model_parallel_rank() == 0:
        dist.barrier()
    if parallel_state.is_pipeline_last_stage():
        dist.broadcast(loss, 0, group=parallel_state.get_pipeline_model_parallel_group())
