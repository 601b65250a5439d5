from torchmetrics import MeanMetric


class Timer:
    def __init__(self, rank):
        self.rank = rank
        self.seconds = MeanMetric(sync_on_compute=False)

    def show(self):
        if self.rank == 0:
            print("seconds per step of rank 0", self.seconds.compute())
