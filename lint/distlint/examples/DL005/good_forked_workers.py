import multiprocessing

from torch.utils.data import DataLoader


def loader(data):
    context = multiprocessing.get_context("fork")
    return DataLoader(
        data,
        num_workers=4,
        collate_fn=lambda rows: rows,
        multiprocessing_context=context,
    )
