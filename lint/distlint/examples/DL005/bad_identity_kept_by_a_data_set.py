from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms


class Radar(Dataset):
    def __init__(self, augment):
        super().__init__()
        if augment:
            self.augment = nn.Sequential(transforms.RandomHorizontalFlip())
        else:
            self.augment = lambda x: x  # expect: DL005 workers

    def __getitem__(self, index):
        return self.augment(self.frames[index])
