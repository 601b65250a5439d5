from torch.utils.data import Dataset
from torchvision import transforms


class Concepts(Dataset):
    def __init__(self, size, center):
        self.transform = transforms.Compose(
            [
                transforms.Resize(size),
                transforms.CenterCrop(size)
                if center
                else transforms.Lambda(lambda x: x),  # expect: DL005 workers
                transforms.ToTensor(),
            ]
        )
