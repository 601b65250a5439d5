import torch.distributed as dist


def train_epoch(model, loader, optimizer, scaler, loss_meter, top1_meter):
    for images, labels in loader:
        logits, loss = model(images, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        right = (logits.argmax(-1) == labels).float().mean()
        mean_loss = loss.detach()
        dist.all_reduce(mean_loss, op=dist.ReduceOp.AVG)  # expect: DL304 at each step only to log a
        dist.all_reduce(right, op=dist.ReduceOp.AVG)
        loss_meter.update(mean_loss.item(), len(labels))
        top1_meter.update(right.item(), len(labels))
