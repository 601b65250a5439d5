from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder


def loader(root, processor):
    images = ImageFolder(
        root, transform=lambda image: processor(image)["pixels"]
    )  # expect: DL005 data set
    return DataLoader(images, batch_size=8, num_workers=4)
