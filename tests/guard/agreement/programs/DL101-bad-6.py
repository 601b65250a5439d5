from transformers import Trainer

class Own(Trainer):
    pass

def main(model, arguments, data):
    trainer = Own(model, arguments, train_dataset=data)
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model("final")
        trainer.save_metrics("all", {})
