from torch.utils.data import DataLoader


def main(args, data, tokenizer):
    def collate(rows):
        return tokenizer.pad([row["ids"] for row in rows])

    loader = DataLoader(data, collate_fn=collate, num_workers=args.jobs)  # expect: DL005 local
    for batch in loader:
        print(batch.shape)
