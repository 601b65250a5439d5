from accelerate import Accelerator

accelerator = Accelerator()

def snapshot(path):
    accelerator.wait_for_everyone()
    accelerator.save_state(path)

def train(steps):
    for step in range(steps):
        if accelerator.is_main_process and step % 100 == 0:
            snapshot(f"step-{step}")
