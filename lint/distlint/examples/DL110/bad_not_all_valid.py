from pytorch_lightning.lite import LightningLite


class Lite(LightningLite):
    def run(self, model, optimizer, train_loader):
        model, optimizer = self.setup(model, optimizer)
        for batch, valid in train_loader:
            if not all(valid):  # expect: DL110 a rank that skips this batch
                print("a broken sample")
                continue
            optimizer.zero_grad()
            loss = model(batch)
            self.backward(loss)
            optimizer.step()
