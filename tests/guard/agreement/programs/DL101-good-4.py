from lightning.pytorch import Trainer

def main(model, data):
    first = Trainer(devices=4, strategy="ddp")
    first.fit(model, data)
    if first.is_global_zero:
        second = Trainer(devices=1)
        second.test(model, data)
