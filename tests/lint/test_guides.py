"""The mistakes and the right versions that every guide to distributed evaluation shows."""

from __future__ import annotations

from tests.lint.helpers import check

GATHER_INSIDE = """\
class Model(LightningModule):
    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero:
            metric = my_metric(self.all_gather(self.outputs))
            self.log("metric", metric, rank_zero_only=True)
"""
GATHER_OUTSIDE = """\
class Model(LightningModule):
    def on_validation_epoch_end(self):
        metric = my_metric(self.all_gather(self.outputs))
        self.outputs.clear()
        if self.trainer.is_global_zero:
            self.log("metric", metric, rank_zero_only=True)
"""


def test_gather_under_is_global_zero_names_both_lines() -> None:
    (found,) = check(GATHER_INSIDE)
    assert (found.code, found.line, found.column) == ("DL101", 4, 32)
    assert "only rank 0 reaches this all_gather" in found.message
    assert [(step.line, step.label, step.text) for step in found.trace] == [
        (3, "guard", "if self.trainer.is_global_zero")
    ]


def test_gather_before_the_guard_is_right() -> None:
    assert check(GATHER_OUTSIDE) == []


def test_cuda_in_forward() -> None:
    source = """\
    def forward(self, x):
        x = x.cuda(0)
        layer_1.cuda(0)
        x_hat = layer_1(x)
    """
    assert [(found.code, found.line) for found in check(source)] == [("DL001", 2), ("DL001", 3)]


def test_to_like_another_tensor_is_right() -> None:
    source = """\
    class Model(LightningModule):
        def __init__(self):
            self.register_buffer("sigma", torch.eye(3))

        def forward(self, x):
            z = torch.Tensor(2, 3)
            return z.to(x) + z.type_as(x).to(self.device)
    """
    assert check(source) == []


def test_f1_with_sync_dist() -> None:
    source = """\
    from torchmetrics.functional import f1_score

    class Model(LightningModule):
        def validation_step(self, batch, batch_idx):
            x, y = batch
            f1 = f1_score(self(x), y, task="binary")
            self.log("val_f1", f1, on_epoch=True, sync_dist=True)
    """
    assert [(found.code, found.line) for found in check(source)] == [("DL201", 7)]


def test_metric_object_is_right() -> None:
    source = """\
    from torchmetrics.classification import BinaryF1Score

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.val_f1 = BinaryF1Score()

        def validation_step(self, batch, batch_idx):
            x, y = batch
            loss = self.loss(self(x), y)
            self.val_f1.update(self(x), y)
            self.log("val_f1", self.val_f1, on_epoch=True)
            self.log("val_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
    """
    assert check(source) == []


def test_lambda_on_a_module() -> None:
    source = """\
    class Model(LightningModule):
        def __init__(self):
            self.act = lambda x: x.relu()
    """
    assert [(found.code, found.line) for found in check(source)] == [("DL005", 3)]


def test_mean_of_a_gathered_list() -> None:
    source = """\
    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.outputs = []

        def test_step(self, batch, batch_idx):
            self.outputs.append(self(batch))

        def on_test_epoch_end(self):
            mean = torch.mean(self.all_gather(self.outputs))
            self.outputs.clear()
            if self.trainer.is_global_zero:
                self.log("reduced", mean, rank_zero_only=True)
    """
    assert [(found.code, found.line) for found in check(source)] == [("DL209", 10)]


def test_unsynced_validation_and_both_remedies() -> None:
    source = """\
    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.accuracy = torchmetrics.Accuracy(task="binary")

        def validation_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("loss", loss)
            self.log("accuracy", self.accuracy(self(x), y), prog_bar=True)

        def test_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("loss", loss, sync_dist=True)
            self.accuracy.update(self(x), y)
            self.log("accuracy", self.accuracy, prog_bar=True)
    """
    assert [(found.code, found.line) for found in check(source)] == [("DL202", 9), ("DL204", 10)]


def test_data_parallel_updates_metrics_on_the_root_device() -> None:
    source = """\
    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.accuracy = torchmetrics.Accuracy(task="binary")

        def validation_step(self, batch, batch_idx):
            x, y = batch
            return self(x), y

        def validation_step_end(self, outputs):
            self.log("accuracy", self.accuracy(*outputs), prog_bar=True)

    model = Model()
    trainer = Trainer(gpus=2, accelerator="dp")
    trainer.fit(model)
    """
    assert all(each.confidence == "review" for each in check(source))
    replica = source.replace("return self(x), y", "self.accuracy.update(self(x), y)")
    sure = [found for found in check(replica) if found.confidence == "sure"]
    assert [(found.code, found.line) for found in sure] == [("DL211", 8)]
