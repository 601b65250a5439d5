def train_epoch(fabric, model, loader, optimizer):
    for image, target in loader:
        loss = model(image, target.to("cuda"))  # expect: DL001 fabric.device
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
