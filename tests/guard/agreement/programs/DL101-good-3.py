def save(self, path):
    if self.use_deepspeed or self.accelerator.is_main_process:
        self.accelerator.save_state(path)
    if self.rank == 0:
        self.checkpoint_io.save_checkpoint(path)
        self.logger.log(path)
        self.report.compute()
