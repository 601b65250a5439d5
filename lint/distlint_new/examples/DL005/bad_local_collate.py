from torch.utils.data import DataLoader


def main(args, data, tokenizer):
    def collate(rows):
        return tokenizer.pad([row["ids"] for row in rows])

    loader = DataLoader(
        data, collate_fn=collate, num_workers=args.workers
    )  # expect: DL005 local function
    for batch in loader:
        print(batch.shape)
