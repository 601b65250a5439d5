from lightning.pytorch.callbacks import Callback


class LogScores(Callback):
    def on_test_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        score = (outputs["guess"] == batch["label"]).float().mean()
        pl_module.log("score", score, on_epoch=True, rank_zero_only=True)  # expect: DL203 rank 0's
