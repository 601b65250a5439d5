from torch.utils.data import Dataset


class Lazy(Dataset):
    def __init__(self, path):
        self.path = path
        self.read = None

    def __getitem__(self, index):
        if self.read is None:
            rows = open(self.path).readlines()
            self.read = lambda at: rows[at]
        return self.read(index)
