from torch.utils.data import DataLoader


def make_collate(pad):
    def collate(rows):
        return [row + [pad] for row in rows]

    return collate


def loader(data, pad):
    return DataLoader(data, num_workers=2, collate_fn=make_collate(pad))  # expect: DL005 local
