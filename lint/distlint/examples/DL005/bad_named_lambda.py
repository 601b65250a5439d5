from torch.utils.data import DataLoader, default_collate


def build(data, mixup):
    collate = None
    if mixup is not None:
        collate = lambda rows: mixup(*default_collate(rows))  # expect: DL005 lambda
    return DataLoader(data, 32, num_workers=2, collate_fn=collate)
