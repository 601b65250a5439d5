from torch.utils.data import Dataset


class Tiles(Dataset):
    def __init__(self, classes):
        def remap(label):
            return classes[label]

        self.remap = remap  # expect: DL005 workers

    def __getitem__(self, index):
        return self.remap(self.labels[index])
