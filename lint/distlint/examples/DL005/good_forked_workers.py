from torch.utils.data import DataLoader


def loader(data):
    return DataLoader(
        data,
        collate_fn=lambda rows: rows[0],
        num_workers=4,
        multiprocessing_context="fork",
    )
