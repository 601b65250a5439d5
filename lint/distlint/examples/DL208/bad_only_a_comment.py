from torch.utils.data import DataLoader, DistributedSampler


def train(model, data, optimizer, scaler):
    train_loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=True))
    for epoch in range(1, 31):  # expect: DL208 call sampler.set_epoch(epoch) at the start
        # train_loader.sampler.set_epoch(epoch)
        for batch in train_loader:
            scaler.scale(model(batch)).backward()
            scaler.step(optimizer)
            scaler.update()
