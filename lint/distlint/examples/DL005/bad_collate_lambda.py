from torch.utils.data import DataLoader


def make_loader(data, tokenizer):
    return DataLoader(
        data,
        batch_size=16,
        num_workers=4,
        collate_fn=lambda rows: tokenizer([row["text"] for row in rows]),  # expect: DL005 lambda
    )
