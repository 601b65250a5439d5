"""torchmetrics' own distributed unit tests, with its sync and with distmetrics' sync."""
