import torch.distributed as dist


def serve(model):
    while True:
        job = [None]
        dist.broadcast_object_list(job, src=0)
        if job[0] is None:
            return
        model(job[0])


def main(rank, model, jobs):
    if rank != 0:
        serve(model)
        return
    for job in [*jobs, None]:
        dist.broadcast_object_list([job], src=0)
