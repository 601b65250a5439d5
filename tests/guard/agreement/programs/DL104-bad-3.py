import torch.distributed as dist
from megatron.core import parallel_state

def count(files, parts):
    rank = parallel_state.get_data_parallel_rank()
    for file in files[rank::parts]:
        dist.all_reduce(read(file), group=parallel_state.get_data_parallel_group())
