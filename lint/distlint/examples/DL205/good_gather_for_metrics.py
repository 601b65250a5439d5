from torch.utils.data import DataLoader, DistributedSampler


def evaluate(accelerator, model, val_set, metric):
    loader = DataLoader(val_set, sampler=DistributedSampler(val_set))
    for inputs, labels in accelerator.prepare(loader):
        metric.add_batch(*accelerator.gather_for_metrics((model(inputs), labels)))
    return metric
