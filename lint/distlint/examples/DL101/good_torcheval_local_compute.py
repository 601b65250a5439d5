from torcheval.metrics import MulticlassAccuracy
from torcheval.metrics.toolkit import sync_and_compute


def evaluate(model, loader, rank):
    accuracy = MulticlassAccuracy()
    for images, labels in loader:
        accuracy.update(model(images), labels)
    everywhere = sync_and_compute(accuracy)
    if rank == 0:
        print("of all ranks", everywhere, "of rank 0", accuracy.compute())
