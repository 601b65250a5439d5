import torch.distributed as dist


def serve(requests, model, rank):
    while True:
        if rank == 0:
            request = requests.get()
            if request is None:
                break
        if rank != 0:
            continue
        answer = model(request)
        dist.broadcast(answer, src=0)  # expect: DL101 only rank 0 reaches this broadcast
