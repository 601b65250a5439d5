from accelerate import Accelerator


def save(accelerator: Accelerator, model, tokenizer, folder):
    accelerator.wait_for_everyone()
    unwrapped = accelerator.unwrap_model(model)
    if accelerator.is_main_process:
        unwrapped.save_pretrained(folder, save_function=accelerator.save)
        tokenizer.save_pretrained(folder)
    accelerator.save_state(folder)
