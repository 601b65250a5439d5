from datasets import load_dataset
from torch.utils.data import DataLoader


def loader(tokenizer):
    data = load_dataset("text", split="train")
    data = data.map(lambda row: tokenizer(row["text"])).filter(lambda row: len(row["ids"]) > 3)
    return DataLoader(data.with_format("torch"), num_workers=4)
