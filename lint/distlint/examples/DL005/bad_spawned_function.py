import torch.multiprocessing as mp


def launch(config, world_size):
    def work(rank):
        print(rank, config)

    mp.spawn(work, nprocs=world_size)  # expect: DL005 process
