import torch.distributed as dist


def make_reporter(rank):
    """What is only defined under the test is called by every rank."""
    if rank == 0:

        def report(value):
            dist.all_reduce(value)
            print(value.item())

    else:

        def report(value):
            dist.all_reduce(value)

    return report
