from distmetrics import gather_samples


def write(ids, predictions, path):
    """The file has the samples of all ranks."""
    gather_samples(ids, predictions, dst=path / "predictions.jsonl")
