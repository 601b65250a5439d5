from functools import partial

from torch.utils.data import DataLoader


def loader(data, processor, prefix):
    def collate(rows, prefix):
        return processor([prefix + row for row in rows])

    fn = partial(collate, prefix=prefix)  # expect: DL005 local
    return DataLoader(data, num_workers=2, collate_fn=fn)
