from torch.utils.data import DataLoader, Dataset


def encode(texts, tokenizer, model):
    class Texts(Dataset):
        def __len__(self):
            return len(texts)

        def __getitem__(self, index):
            return tokenizer(texts[index])

    loader = DataLoader(Texts(), batch_size=64, num_workers=8)  # expect: DL005 workers
    return [model(batch) for batch in loader]
