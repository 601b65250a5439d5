import random

from torch.utils.data import DataLoader


class Run:
    def loader(self, data):
        def seed_worker(worker_id):
            random.seed(self.seed + worker_id)

        return DataLoader(data, num_workers=8, worker_init_fn=seed_worker)  # expect: DL005 local
