from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder


def loader(root, processor):
    images = ImageFolder(root, transform=lambda image: processor(image))  # expect: DL005 workers
    return DataLoader(images, batch_size=8, num_workers=4)
