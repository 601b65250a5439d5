from torch.utils.data import Dataset


class Files(Dataset):
    def __init__(self, paths, sizes):
        self.paths = sorted(paths, key=lambda path: path.name)
        self.sizes = list(map(lambda size: size // 2, sizes))
        self.longest = max(sizes, key=lambda size: size[0])
        double = lambda x: 2 * x
        self.first = double(sizes[0])
