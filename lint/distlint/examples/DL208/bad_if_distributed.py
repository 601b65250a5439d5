from torch.utils.data import DataLoader, DistributedSampler, RandomSampler


def train(args, model, train_set, optimizer):
    sampler = DistributedSampler(train_set) if args.world_size > 1 else RandomSampler(train_set)
    loader = DataLoader(train_set, sampler=sampler, batch_size=args.batch_size)
    for epoch in range(int(args.num_train_epochs)):  # expect: DL208 call sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            loss = model(**batch)[0]
            loss.backward()
            if (step + 1) % args.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
