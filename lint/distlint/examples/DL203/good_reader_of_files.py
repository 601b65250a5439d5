class Report:
    def __init__(self, writer):
        self.writer = writer

    def log(self, name, value, rank_zero_only=False):
        self.writer.add_scalar(name, value)

    def validation_step(self, batch, batch_idx):
        loss = (batch["guess"] - batch["wanted"]).abs().mean()
        self.log("val_loss", loss, rank_zero_only=True)
