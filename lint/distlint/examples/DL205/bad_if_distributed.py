from torch.utils.data import DataLoader, DistributedSampler


def build(args, eval_data):
    sampler = DistributedSampler(eval_data) if args.multi else None  # expect: DL205 this sampler repeats samples
    return DataLoader(eval_data, batch_size=64, sampler=sampler, drop_last=False)
