import torch


def collect(accelerator, predictions, labels):
    predictions, labels = torch.cat(predictions), torch.cat(labels)
    accelerator.gather_for_metrics((predictions, labels))  # expect: DL212 gather_for_metrics
    return (predictions == labels).float().mean()
