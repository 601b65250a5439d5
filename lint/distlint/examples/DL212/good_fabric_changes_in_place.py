from lightning.fabric import Fabric


def validate(fabric: Fabric, model, loader):
    loss = sum(model(batch).detach() for batch in loader)
    fabric.all_reduce(loss, reduce_op="mean")
    fabric.print("loss", loss.item())
