"""Training loops on one device or many: one's own, by the runner, and the trainer's."""
