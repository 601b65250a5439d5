import os
from lightning.pytorch import Trainer

def test_all(model, data, folder, device):
    trainer = Trainer(devices=[device])
    for file in os.listdir(folder):
        trainer.test(model, data, ckpt_path=file)
