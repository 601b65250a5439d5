import torch
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm


def fit(args, model, train_set, optimizer):
    sampler = DistributedSampler(train_set, num_replicas=args.world_size, rank=args.rank)
    loader = torch.utils.data.DataLoader(train_set, batch_size=args.batch, sampler=sampler)
    for epoch in tqdm(range(args.epochs)):  # expect: DL208 call sampler.set_epoch(epoch) at the
        for step, batch in enumerate(tqdm(loader)):
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
