from torch.utils.data import Dataset


class Table(Dataset):
    def __init__(self, path):
        self.path = path
        self.open = lambda: open(path)

    def __getstate__(self):
        return {"path": self.path}
