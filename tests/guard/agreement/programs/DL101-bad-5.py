from lightning.pytorch import Trainer

def main(model, data):
    trainer = Trainer(devices=4, strategy="ddp")
    trainer.fit(model, data)
    if trainer.is_global_zero:
        trainer.test(model, data)
