from torch.utils.data import DataLoader


def loaders(data):
    plain = DataLoader(data, collate_fn=lambda rows: rows)
    none = DataLoader(data, collate_fn=lambda rows: rows, num_workers=0)
    return plain, none
