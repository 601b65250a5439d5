"""The training log: values are added up on this rank, and all ranks' are combined at a flush."""
