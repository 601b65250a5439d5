import torch
from torch.distributed.nn.functional import all_reduce


def covariance_loss(z, world_size):
    covariance = z.T @ z / len(z)
    all_reduce(covariance)  # expect: DL212 assign the result
    covariance = covariance / world_size
    diagonal = torch.diagonal(covariance)
    return (covariance**2).sum() - (diagonal**2).sum()
