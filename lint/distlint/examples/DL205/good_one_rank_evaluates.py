from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler


def evaluate(args, model, eval_set):
    sampler = SequentialSampler(eval_set) if args.local_rank == -1 else DistributedSampler(eval_set)
    return [model(batch) for batch in DataLoader(eval_set, sampler=sampler)]


def main(args, model, eval_set):
    if args.do_eval and args.local_rank in (-1, 0):
        evaluate(args, model, eval_set)
