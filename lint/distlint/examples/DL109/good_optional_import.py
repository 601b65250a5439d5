import torch.distributed as dist


def barrier(device_ids):
    try:
        import torch_npu

        torch_npu.npu.synchronize()
        dist.barrier()
    except ImportError:
        dist.barrier(device_ids=device_ids)
