import torch.multiprocessing as mp


def work(rank, build):
    print(rank, build())


if __name__ == "__main__":
    mp.spawn(work, args=(lambda: "model",), nprocs=2)  # expect: DL005 process
