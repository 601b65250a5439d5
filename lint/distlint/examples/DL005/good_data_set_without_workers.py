from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, scale):
        self.scale = lambda x: x * scale


def loader():
    return DataLoader(Rows(2), batch_size=8)
