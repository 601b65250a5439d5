from torch.utils.data import DataLoader


class Collate:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, rows):
        return self.tokenizer(rows)


def loader(data, tokenizer):
    collate = Collate(tokenizer)
    return DataLoader(data, collate_fn=collate, num_workers=4)
