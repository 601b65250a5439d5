from lightning.fabric import Fabric


def is_master(fabric):
    return fabric.global_rank == 0


def validate(model, loader):
    fabric = Fabric(devices=4, strategy="ddp")
    fabric.launch()
    model, loader = fabric.setup(model), fabric.setup_dataloaders(loader)
    losses = sum(model(batch).detach() for batch in loader)
    if is_master(fabric):
        losses = fabric.all_gather(losses)  # expect: DL101 only rank 0 reaches this all_gather
        print("validation loss", losses.mean())
