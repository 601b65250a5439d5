from torch.utils.data import DataLoader, DistributedSampler


def main(trainer, model, dataset):
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))
    trainer.fit(model, loader)
    for epoch in range(3):
        for batch in loader:
            model(batch).backward()
