from transformers import Trainer
import wandb

class OwnTrainer:
    def log(self, name, value):
        self.writer.add_scalar(name, value)

    def training_step(self, batch):
        if self.rank == 0:
            self.log("loss", batch.mean())
            wandb.log("loss", batch.mean())

class Theirs(Trainer):
    def training_step(self, model, inputs):
        if self.is_world_process_zero():
            self.log({"loss": 0.0})
            self.log("loss", 0.0)
