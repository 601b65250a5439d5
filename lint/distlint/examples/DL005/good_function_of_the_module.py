from functools import partial

from torch.utils.data import DataLoader


def collate(rows, pad):
    return [row + [pad] for row in rows]


def loader(data, pad):
    return DataLoader(data, num_workers=4, collate_fn=partial(collate, pad=pad))
