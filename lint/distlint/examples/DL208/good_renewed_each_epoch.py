from torch.utils.data import DataLoader, DistributedSampler


def train(model, shards, optimizer, rank):
    for shard in shards:
        loader = DataLoader(shard, sampler=DistributedSampler(shard, rank=rank))
        for batch in loader:
            model(batch).backward()
            optimizer.step()
