import torch.distributed as dist


class Trainer:
    def training_step(self, batch, batch_idx):
        loss = self.model(batch)
        self.logger.log("loss", loss, sync_dist=True)
        return loss


def main():
    dist.init_process_group("nccl")
    Trainer().run()
