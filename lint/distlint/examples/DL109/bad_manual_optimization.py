from lightning.fabric import Fabric


def run(model, optimizer, loader):
    fabric = Fabric(devices=2, strategy="ddp")
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    for batch in loader:
        try:
            fabric.backward(model(batch))
        except RuntimeError as error:  # expect: DL109 a rank that fails here misses the backward
            fabric.print("skipping a batch", error)
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
