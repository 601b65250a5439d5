from torch.utils.data import DataLoader, DistributedSampler


def test_sampler_deals_out_all(dataset):
    seen = set()
    for rank in range(2):
        sampler = DistributedSampler(dataset, num_replicas=2, rank=rank)
        seen |= {int(each) for each in DataLoader(dataset, sampler=sampler)}
    assert seen == set(range(len(dataset)))
