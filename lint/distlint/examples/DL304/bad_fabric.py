from lightning.fabric import Fabric


def main(model, optimizer, loader):
    fabric = Fabric(devices=4, strategy="ddp")
    fabric.launch()
    for epoch in range(10):
        for batch in loader:
            loss = model(batch)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            mean = fabric.all_reduce(loss.detach(), reduce_op="mean")  # expect: DL304 at each step
            fabric.print(f"epoch {epoch} loss {mean.item():.3f}")
