from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T


class Ratios(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, index):
        image = self.rows[index]
        transform = T.Compose([T.Lambda(lambda x: x.convert("RGB")), T.Resize(image.size)])
        return transform(image)


def loader(rows):
    return DataLoader(Ratios(rows), num_workers=4)
