from torch.utils.data import DataLoader


class Reader:
    def __init__(self):
        self.parse = lambda line: line.split()


def loader(data):
    return DataLoader(data, num_workers=4)
