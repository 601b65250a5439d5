from collections import defaultdict

from torch.utils.data import IterableDataset


class Stream(IterableDataset):
    def __init__(self, files):
        self.files = files
        self.seen = defaultdict(lambda: 0)  # expect: DL005 workers

    def __iter__(self):
        for file in self.files:
            self.seen[file] += 1
            yield from open(file)
