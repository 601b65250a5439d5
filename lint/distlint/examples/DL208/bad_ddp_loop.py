from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def train(net, dataset, optimizer, epochs):
    model = DDP(net)
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    for epoch in range(epochs):  # expect: DL208 call sampler.set_epoch(epoch) at the start
        for inputs, targets in loader:
            optimizer.zero_grad()
            model(inputs, targets).backward()
            optimizer.step()
