"""One's own loop: the numbers of one process, whatever the number of ranks."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset, WeightedRandomSampler

from distmetrics import ConfigurationError, InputError, InputTypeError, MismatchError, Runner
from distmetrics.errors import DistmetricsError
from tests.runner.loops import Fit, loss_fn, metrics, model, plain, samples
from tests.runner.threads import Threads


def threads(fn, world_size=2, **flags):
    """Call ``fn(runner)`` on every rank; return each rank's result."""
    return Runner(strategy=Threads(), devices=world_size, **flags).launch(fn)


def single(fn, **flags):
    return Runner(strategy="single", accelerator="cpu", **flags).launch(fn)


def assert_same(found, expected):
    values, weights = found
    assert values == pytest.approx(expected[0], rel=1e-6)
    assert weights.keys() == expected[1].keys()
    for name, value in expected[1].items():
        torch.testing.assert_close(weights[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"clip": 0.3}])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_loop_of_one_process(options, steps):
    assert_same(Fit(strategy="single", accelerator="cpu").run(**options), plain(**options))
    assert_same(Fit(strategy="single", accelerator="cpu").run(**options, steps=steps), plain(**options))


@pytest.mark.parametrize("options", [{}, {"clip": 0.3}, {"val": 3}, {"val": 2}])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_loop_on_several_ranks(options, steps, world_size):
    for found in Fit(strategy=Threads(), devices=world_size).run(**options, steps=steps):
        assert_same(found, plain(**options))


def test_who_this_is():
    def look(runner):
        assert runner.world_size == 2
        assert runner.is_global_zero == (runner.global_rank == 0)
        assert (runner.local_rank, runner.node_rank, runner.device.type) == (runner.global_rank, 0, "cpu")
        return runner.global_rank

    assert threads(look) == [0, 1]
    runner = Runner(strategy=Threads(), devices=2)
    assert (runner.world_size, runner.global_rank, runner.is_global_zero) == (2, 0, True)


def test_arguments_and_what_is_returned():
    def add(runner, a, *, b):
        return runner.world_size + a + b

    assert Runner(strategy="single").launch(add, 1, b=2) == 4


class Parent(Runner):
    def run(self, x):
        return x + self.world_size


class Child(Parent):
    def run(self, x):
        return 10 * super().run(x)


def test_a_run_may_call_its_parents():
    assert Child(strategy="single").run(2) == 30
    assert Child(strategy=Threads(), devices=2).run(2) == [40, 40]
    with pytest.raises(ConfigurationError, match="Runner has no run"):
        Runner(strategy="single").run()


def test_collectives():
    def talk(runner):
        rank = runner.global_rank
        runner.barrier()
        assert runner.all_gather({"a": torch.tensor(rank)})["a"].tolist() == [0, 1]
        assert runner.all_reduce(torch.tensor([rank + 1.0])).tolist() == [3]
        assert runner.all_reduce(torch.tensor(rank), "max") == 1
        mean = runner.all_reduce(torch.tensor(1.0 + rank), "mean", weight=3 if rank else 1)
        assert mean == 1.75
        scores = metrics()
        x, y = samples(7).tensors
        part = slice(0, 3) if rank == 0 else slice(3, 7)
        for metric in scores.values():
            metric.update(x[part, 0].sigmoid(), y[part].int())
        return runner.sync_and_compute(scores)["auroc"].item()

    expected = metrics()["auroc"](samples(7).tensors[0][:, 0].sigmoid(), samples(7).tensors[1].int()).item()
    assert threads(talk) == pytest.approx([expected] * 2)


def test_the_log_of_a_launch():
    def talk(runner):
        for index in range(3):
            runner.log.mean("loss", torch.tensor(float(index)), weight=1 + runner.global_rank)
        runner.log.sum("samples", 4)
        return runner.log.flush(), runner.log.flush()

    runner = Runner(strategy=Threads(), devices=2)
    for _ in range(2):  # each launch has its own
        assert runner.launch(talk) == [({"loss": 1.0, "samples": 8.0}, {})] * 2


def test_gradients_through_a_gather():
    def talk(runner):
        x = torch.tensor(1.0 + runner.global_rank, requires_grad=True)
        (runner.all_gather(x, sync_grads=True) ** 2).sum().backward()
        return x.grad.item()

    assert threads(talk) == [4, 8]


class Thing:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x

    __hash__ = None


@pytest.mark.parametrize("src", [0, 1])
def test_broadcast_of_anything(src):
    big = torch.arange(100_000.0).reshape(2, -1)
    sent = {"big": big, "names": ["a", None], "thing": Thing(3), "more": (big.int(), torch.empty(0), 2.5)}

    def talk(runner):
        here = sent if runner.global_rank == src else None
        got = runner.broadcast(here, src=src, allow_pickle=True)
        assert torch.equal(got["big"], big)
        assert got["names"] == ["a", None]
        assert got["thing"] == Thing(3)
        assert torch.equal(got["more"][0], big.int())
        assert got["more"][1].shape == (0,)
        return got["more"][2], runner.broadcast(runner.global_rank, src), runner.broadcast("x" * runner.global_rank, 1)

    assert threads(talk) == [(2.5, src, "x")] * 2


def test_wrong_collectives_are_refused_on_every_rank():
    with pytest.raises(InputError, match="broadcast from rank 2 in a world of 2") as info:
        threads(lambda runner: runner.broadcast(1, src=2))
    assert "rank 1 raised" in str(info.value.__notes__)
    with pytest.raises(InputTypeError, match=r"(?s)cannot be sent.*allow_pickle=True"):
        threads(lambda runner: runner.broadcast(Thing(3)))
    with pytest.raises(InputTypeError, match=r"cannot be sent.*cannot pickle"):
        threads(lambda runner: runner.broadcast((n for n in ()), allow_pickle=True))
    with pytest.raises(MismatchError, match="allow_pickle=True"):
        threads(lambda runner: runner.broadcast(1, allow_pickle=runner.global_rank == 0))
    with pytest.raises(InputError, match="takes the weight"):
        threads(lambda runner: runner.all_reduce(torch.ones(1), "mean"))
    with pytest.raises(InputError, match="no reduction 'avg'"):
        threads(lambda runner: runner.all_reduce(torch.ones(1), "avg"))
    with pytest.raises(MismatchError):
        threads(lambda runner: runner.broadcast(1, src=runner.global_rank))


def test_print_is_rank_zeros(capsys):
    threads(lambda runner: runner.print("rank", runner.global_rank))
    assert capsys.readouterr().out == "rank 0\n"


def test_to_device():
    def move(runner):
        net = nn.Linear(1, 1)
        assert runner.to_device(net) is net
        return runner.to_device({"a": torch.ones(1), "b": "x"})

    assert single(move) == {"a": torch.ones(1), "b": "x"}


def test_seeds():
    def draw(runner):
        runner.seed_everything(5)
        return torch.rand(1).item()

    assert single(draw) == single(draw)
    assert single(lambda _: torch.rand(1).item(), seed=3) == single(lambda _: torch.rand(1).item(), seed=3)
    for wrong in (-1, 1.5, 2**32, True):
        with pytest.raises(ConfigurationError, match="seed must be from 0 to"):
            single(lambda runner, wrong=wrong: runner.seed_everything(wrong))


def numbers(count):
    return TensorDataset(torch.arange(count))


def read(loader):
    return [value for (batch,) in loader for value in batch.tolist()]


def test_evaluation_loaders_repeat_nothing():
    parts = threads(lambda runner: read(runner.setup_dataloaders(DataLoader(numbers(5), 2))))
    assert sorted(itertools.chain(*parts)) == [0, 1, 2, 3, 4]


class Turned(Sampler):
    """A random order that does not draw from the generator, which ranks that are threads share."""

    def __init__(self, count):
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(index + self.epoch) % self.count for index in range(self.count)])

    def __len__(self):
        return self.count


def test_training_loaders_are_even_and_turn_with_the_epoch():
    def two_epochs(runner):
        data = DataLoader(numbers(5), 2, sampler=Turned(5))
        train, held = runner.setup_dataloaders(data, DataLoader(numbers(4)))
        assert (len(train), len(held), train.batch_size) == (2, 2, 2)
        epochs = [read(train), read(train)]
        train.set_epoch(1)
        assert read(train) == epochs[1]
        return epochs

    first, second = threads(two_epochs)
    assert (first, second) == ([[0, 2, 4], [1, 3, 0]], [[1, 3, 0], [2, 4, 1]])


def test_what_kind_of_loader_may_be_said():
    def both(runner):
        evaluated = runner.setup_dataloaders(DataLoader(numbers(5), shuffle=True), train=False)
        trained = runner.setup_dataloaders(DataLoader(numbers(5)), train=True)
        as_it_is = runner.setup_dataloaders(DataLoader(numbers(5)), replace_sampler=False, move_to_device=False)
        drawn = runner.setup_dataloaders(DataLoader(numbers(5), sampler=WeightedRandomSampler([1.0] * 5, 5)))
        return len(read(evaluated)), len(read(trained)), len(read(as_it_is)), len(read(drawn))

    assert threads(both) == [(2, 3, 5, 3), (3, 3, 5, 3)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def test_data_that_can_not_be_dealt_out():
    def stream(runner):
        return len(list(runner.setup_dataloaders(DataLoader(Stream()))))

    with pytest.warns(UserWarning, match=r"or replace_sampler=False \(Runner\)"):
        assert threads(stream) == [3, 3]


class WithWorkers(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.initial_seed() % 2**31


def test_workers_draw_other_numbers_on_each_rank():
    def seeds(runner, workers):
        runner.seed_everything(4, workers=workers)
        loader = runner.setup_dataloaders(DataLoader(WithWorkers(), num_workers=1), replace_sampler=False)
        return loader.worker_init_fn

    assert single(lambda runner: seeds(runner, False)) is None
    first, second = threads(lambda runner: seeds(runner, True))
    drawn = []
    for start in (first, second):
        torch.manual_seed(9)
        start(0)
        drawn.append(torch.rand(1).item())
    assert drawn[0] != drawn[1]


def test_checkpoints_are_whole_and_by_the_users_own_names(tmp_path):
    path = tmp_path / "deep" / "last.pt"

    def write(runner):
        net = model()
        wrapped, optimizer = runner.setup(net, torch.optim.AdamW(net.parameters()))
        runner.backward(wrapped(torch.ones(2, 4)).sum())
        optimizer.step()
        runner.save(path, {"model": wrapped, "optimizer": optimizer, "epoch": 3})
        assert path.exists()
        saved = runner.load(path)
        assert saved["model"].keys() == model().state_dict().keys()
        nn.init.zeros_(net[0].weight)
        wrapped.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        runner.save(wrapped.state_dict(), str(tmp_path / "turned.pt"))  # as in torch.save
        return saved["epoch"], torch.equal(net[0].weight, saved["model"]["0.weight"])

    assert threads(write) == [(3, True)] * 2
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["deep", "last.pt", "turned.pt"]
    plain_model = model()
    plain_model.load_state_dict(torch.load(tmp_path / "turned.pt"))


def test_a_checkpoint_that_can_not_be_written_is_an_error_on_every_rank(tmp_path):
    (tmp_path / "file").write_text("")

    def write(runner):
        with pytest.raises(DistmetricsError, match="rank 0 could not write"):
            runner.save(tmp_path / "file" / "x.pt", {})
        with pytest.raises(DistmetricsError, match=r"rank 0 could not write .*pickle"):
            runner.save(tmp_path / "x.pt", (n for n in ()))
        with pytest.raises(InputTypeError, match="no path"):
            runner.save({}, {})

    threads(write)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_precision():
    seen = []

    class Low(Threads):
        def forward(self):
            return torch.autocast("cpu", dtype=torch.bfloat16)

    class Net(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            seen.append(out.dtype)
            return out

    def compute(runner):
        net = runner.setup(Net(2, 1))
        with runner.autocast():
            assert net.module(torch.ones(1, 2)).dtype == torch.bfloat16
        return net(torch.ones(1, 2)).dtype

    assert Runner(strategy=Low(), devices=1).launch(compute) == [torch.float32]
    assert set(seen) == {torch.bfloat16}


def test_a_loss_needs_a_model_that_is_set_up():
    def train(runner):
        net = model()
        loss = net(torch.ones(2, 4)).sum()
        with pytest.raises(ConfigurationError, match="not set up"):
            runner.backward(loss)
        wrapped = runner.setup(net)
        with pytest.raises(ConfigurationError, match="call the one that setup returned"):
            runner.backward(loss)
        loss = wrapped(torch.ones(2, 4)).sum()
        for wrong, error in [(1.0, InputTypeError), (loss.detach(), InputError), (loss.expand(2), InputError)]:
            with pytest.raises(error):
                runner.backward(wrong)
        with pytest.raises(ConfigurationError, match="not set up"):
            runner.backward(loss, nn.Linear(1, 1))
        runner.backward(loss, wrapped)

    threads(train)


def test_training_on_data_that_is_dealt_out_for_evaluation():
    def train(runner):
        net = runner.setup(model())
        loader = runner.setup_dataloaders(DataLoader(samples(5), 2))
        for x, y in loader:
            with pytest.raises(ConfigurationError, match="5 items on 2 ranks: ranks would take different numbers"):
                runner.backward(loss_fn(net(x), y))
        runner.backward(net(x).sum())

    threads(train)


def test_training_on_data_that_divides_and_was_only_taken_for_evaluation():
    """As guides have it: no shuffling, no word on what it is for. The steps would be none of one process's."""

    def train(runner, **said):
        net = runner.setup(model())
        batches = []
        for x, y in runner.setup_dataloaders(DataLoader(samples(8), 2), **said):
            runner.backward(loss_fn(net(x), y))
            batches.append(x)
        return batches

    message = r"evaluation, 8 items on 2 ranks: their batches(.|\n)*Likely: it doesn't shuffle(.|\n)*train=True"
    with pytest.raises(ConfigurationError, match=message):
        threads(train)
    for rank, batches in enumerate(threads(lambda runner: train(runner, train=True))):
        assert torch.equal(torch.cat(batches), samples(8)[:][0][rank::2])
    threads(lambda runner: train(runner, train=False))  # somebody has said that steps are none of it
    assert len(single(train)) == 4


def _step_inside(runner, net, optimizer):
    with runner.no_backward_sync(net):
        runner.backward(net(torch.ones(2, 4)).sum())
        optimizer.step()


def _step_after(runner, net, optimizer):
    with runner.no_backward_sync(net):
        runner.backward(net(torch.ones(2, 4)).sum())
    optimizer.step()


def _call_inside(runner, net, optimizer):
    """It is the model's call that DistributedDataParallel goes by."""
    with runner.no_backward_sync(net):
        loss = net(torch.ones(2, 4)).sum()
    runner.backward(loss)
    optimizer.step()


def _closure_inside(runner, net, optimizer):
    def closure():
        loss = net(torch.ones(2, 4)).sum()
        runner.backward(loss)
        return loss

    with runner.no_backward_sync(net):
        optimizer.step(closure)


def _model_said(runner, net, optimizer):
    other = runner.setup(model())
    with runner.no_backward_sync(net):
        runner.backward(net(torch.ones(2, 4)).sum(), net)
    runner.backward(other(torch.ones(2, 4)).sum(), other)
    optimizer.step()


@pytest.mark.parametrize("wrong", [_step_inside, _step_after, _call_inside, _closure_inside, _model_said])
def test_a_step_with_gradients_that_have_stayed_on_their_rank(wrong):
    def train(runner):
        net = model()
        net, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        if runner.world_size == 1:
            wrong(runner, net, optimizer)
            return
        before = net.module[0].weight.clone()
        with pytest.raises(ConfigurationError, match=r"rank's alone, and the ranks' weights would part(.|\n)*step\(\)"):
            wrong(runner, net, optimizer)
        assert torch.equal(net.module[0].weight, before)
        optimizer.zero_grad()
        optimizer.step()  # with no gradients at all
        runner.backward(net(torch.ones(2, 4)).sum())
        optimizer.step()
        assert not torch.equal(net.module[0].weight, before)
        with runner.no_backward_sync(net):
            optimizer.step()  # with gradients that have been shared

    threads(train)
    single(train)


def test_wrong_set_up():
    def wrong(runner):
        net = model()
        optimizer = torch.optim.SGD(net.parameters())
        for arguments, error, message in [
            ((3,), InputTypeError, "nn.Module, first; got a int"),
            ((net, net), InputTypeError, "optimizers after the model, got a Sequential"),
            ((nn.Linear(1, 1), optimizer), ConfigurationError, "steps no parameter of the Linear"),
        ]:
            with pytest.raises(error, match=message):
                runner.setup(*arguments)
        wrapped, stepped = runner.setup(net, optimizer)
        for arguments in [(net,), (wrapped,), (net, optimizer), (nn.Linear(1, 1), stepped)]:
            with pytest.raises(ConfigurationError, match="set up already"):
                runner.setup(*arguments)
        loader = runner.setup_dataloaders(DataLoader(samples(2)))
        with pytest.raises(ConfigurationError, match="set up already"):
            runner.setup_dataloaders(loader)
        for thing in ("abc", net, 3):
            with pytest.raises(InputTypeError, match="takes loaders"):
                runner.setup_dataloaders(thing)
        with pytest.raises(InputTypeError, match="at least one"):
            runner.setup_dataloaders()
        with pytest.raises(ConfigurationError, match="either max_norm"):
            runner.clip_gradients(wrapped, stepped)
        for wrong_limit in (
            {"max_norm": -1},
            {"max_norm": 0},
            {"clip_value": -0.1},
            {"max_norm": "1"},
            {"clip_value": True},
        ):
            with pytest.raises(ConfigurationError, match="must be a positive number, or None, got"):
                runner.clip_gradients(wrapped, stepped, **wrong_limit)
        with pytest.raises(InputTypeError, match="that setup returned"):
            runner.clip_gradients(net, stepped, max_norm=1)
        with pytest.raises(InputTypeError, match="that setup returned"):
            runner.no_backward_sync(net)

    threads(wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda runner: runner.setup(model()),
        lambda runner: runner.setup_dataloaders([1]),
        lambda runner: runner.backward(torch.ones(())),
        lambda runner: runner.barrier(),
        lambda runner: runner.log,
        lambda runner: runner.all_gather(torch.ones(())),
        lambda runner: runner.broadcast(1),
        lambda runner: runner.save("x.pt", 1),
    ],
)
def test_outside_of_a_launch(call):
    runner = Runner(strategy="single")
    with pytest.raises(ConfigurationError, match="outside of a launch"):
        call(runner)
    runner.launch(lambda runner: None)
    with pytest.raises(ConfigurationError, match="outside of a launch"):
        call(runner)


def test_a_launch_inside_a_launch():
    class Again(Runner):
        def run(self):
            self.run()

    for call in (
        lambda runner: runner.launch(print),
        lambda _: Runner(strategy="single").launch(print),
        lambda _: Again(strategy="single").run(),
    ):
        with pytest.raises(ConfigurationError, match="launch inside a launch"):
            threads(call)
    with pytest.raises(ConfigurationError, match="launch inside a launch"):
        Again(strategy="single").run()
    with pytest.raises(InputTypeError, match="launch takes a function"):
        Runner(strategy="single").launch(3)


class Forgetful(Runner):
    def __init__(self):
        self.mine = 1

    def run(self):
        return 1


def test_wrong_flags():
    with pytest.raises(ConfigurationError, match="has not called super"):
        Forgetful().run()
    with pytest.raises(ConfigurationError, match=r"gpus=2 .*together with devices=2"):
        Runner(gpus=2, devices=2)
    with pytest.raises(ConfigurationError, match=r"gpus=2 .*accelerator='cpu'"):
        Runner(gpus=2, accelerator="cpu")
    with pytest.raises(ConfigurationError):
        Runner(strategy="dddp")
    with pytest.raises(TypeError, match="unexpected"):
        Runner(max_epochs=3)
