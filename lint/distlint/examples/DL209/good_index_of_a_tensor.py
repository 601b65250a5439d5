import torch


def pick(scores, indices):
    rows = []
    for index in indices:
        rows.append(scores[index])
    chosen = torch.stack(rows).gather(1, indices.unsqueeze(1))
    return torch.mean(chosen), scores.gather(1, indices.unsqueeze(1)).max()
