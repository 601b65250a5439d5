class Evaluator:
    def __init__(self, model):
        self.model = model
        self.outputs = []

    def validation_step(self, batch):
        self.outputs.append(self.model(batch))

    def on_validation_epoch_end(self):
        return sum(self.outputs) / len(self.outputs)


def evaluate(model, loader):
    evaluator = Evaluator(model)
    for batch in loader:
        evaluator.validation_step(batch)
    return evaluator.on_validation_epoch_end()
