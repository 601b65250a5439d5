import torch


def forward(x):
    return x + torch.zeros(3)


class Reader:
    def forward(self, x):
        return x.unsqueeze(0) * torch.ones(3)
