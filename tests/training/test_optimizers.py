import pytest
import torch
from torch import nn

from skytrain.config import ConfigError, compose
from skytrain.config.schema import OPTIMIZERS
from skytrain.models import build_model
from skytrain.training import make_optimizer
from skytrain.training.optimizers.groups import BaseSettings, hidden_matrices, parameter_groups
from skytrain.training.optimizers.lion import Lion
from skytrain.training.optimizers.muon import MatrixMuon, Muon, orthogonal


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build_model(compose(["model=gpt2-tiny", "tokenizer=bytes"]).config.model, seed=0)


def test_matrices_decay_and_vectors_do_not(model):
    decaying, spared = parameter_groups(model, BaseSettings(1e-3, 0.1))
    assert (decaying["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in decaying["params"]} == {2}
    assert {p.ndim for p in spared["params"]} == {1}
    assert len(decaying["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_the_rate_of_a_head_is_not_that_of_the_blocks_matrices():
    untied = build_model(compose(["model=gpt2-tiny", "tokenizer=bytes", "model.tied_head=false"]).config.model, seed=0)
    rates = {"embedding": 2.0, "head": 3.0, "vector": 4.0}
    rate_of = {
        id(parameter): group["lr"]
        for group in parameter_groups(untied, BaseSettings(1.0, 0.1, lr_by_kind=rates))
        for parameter in group["params"]
    }
    found = {name: rate_of[id(parameter)] for name, parameter in untied.named_parameters()}
    assert {found[name] for name in hidden_matrices(untied)} == {1.0}
    assert sorted(set(found.values())) == [1.0, 2.0, 3.0, 4.0]


def test_lion_follows_the_papers_update(model):
    """Algorithm 2 of arXiv 2302.06675, written out for one tensor."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(5, 3))
    expected, momentum = parameter.detach().clone(), torch.zeros(5, 3)
    optimizer = Lion([parameter], lr=0.01, betas=(0.9, 0.99), weight_decay=0.5)
    for _ in range(4):
        gradient = torch.randn(5, 3)
        parameter.grad = gradient
        optimizer.step()
        update = (0.9 * momentum + 0.1 * gradient).sign()
        expected = expected - 0.01 * (update + 0.5 * expected)
        momentum = 0.99 * momentum + 0.01 * gradient
    torch.testing.assert_close(parameter.detach(), expected)


def test_the_configuration_chooses_the_optimizer(model):
    lion = make_optimizer(model, compose(["optimizer=lion"]).config.optimizer, fused=False)
    assert isinstance(lion, Lion)
    adamw = make_optimizer(model, compose().config.optimizer, fused=False)
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.param_groups[0]["betas"] == (0.9, 0.95)


def scaled(kind: str) -> nn.Module:
    words = [
        "model=gpt2-tiny",
        "tokenizer=bytes",
        f"model.parametrization={kind}",
        "model.base_width=32",
        "model.base_layers=2",
    ]
    return build_model(compose(words).config.model, seed=0)


def test_a_parametrization_sets_rate_decay_and_eps_of_each_parameter():
    model = scaled("completep")  # four times the base's width, twice its depth
    optimizer = make_optimizer(model, compose().config.optimizer, fused=False)
    lr, decay, eps = (getattr(compose().config.optimizer, name) for name in ("lr", "weight_decay", "eps"))
    of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    hidden, table, vector = (
        of[id(p)] for p in (model.blocks["0"].mlp.up.weight, model.embedding.tokens.weight, model.head.norm.weight)
    )
    assert (hidden["lr"], hidden["weight_decay"], hidden["eps"]) == pytest.approx((lr / 4, decay * 4, eps / 8))
    assert (table["lr"], table["weight_decay"], table["eps"]) == pytest.approx((lr, decay, eps / 8))
    assert (vector["lr"], vector["weight_decay"]) == pytest.approx((lr, 0))


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest(model):
    assert hidden_matrices(model) == {
        name for name, p in model.named_parameters() if name.startswith("blocks.") and p.ndim == 2
    }
    muon = make_optimizer(model, compose(["optimizer=muon"]).config.optimizer, fused=False)
    assert isinstance(muon, Muon)
    assert sum(len(group["params"]) for group in muon.param_groups) == len(list(model.parameters()))


def test_muon_leaves_the_head_of_another_model_to_adamw():
    other = nn.ModuleDict({"table": nn.Embedding(11, 4), "hidden": nn.Linear(4, 12), "head": nn.Linear(12, 11)})
    assert hidden_matrices(other) == {"hidden.weight"}


def muon_steps(model: nn.Module, optimizer: Muon, seeds: range) -> None:
    for seed in seeds:
        tokens = torch.randint(0, 250, (2, 17), generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()


def test_muon_moves_each_matrix_by_the_orthogonal_matrix_nearest_to_its_momentum():
    """Nesterov momentum that rises from 0.5 to 0.9, decay and AdamW's size of an update, written out with an SVD."""
    torch.manual_seed(0)
    shapes = [(12, 32), (32, 12), (12, 32), (16, 16)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    expected = [p.detach().double() for p in parameters]
    momenta = [torch.zeros(shape).double() for shape in shapes]
    groups = [{"params": parameters, "weight_decay": 0.5, "lr": 0.1, "hidden_matrices": True}]
    table = {"params": [nn.Parameter(torch.zeros(3, 2))], "weight_decay": 0.0}
    optimizer = Muon(
        [*groups, table], lr=0.1, momentum=0.9, betas=(0.9, 0.95), eps=1e-8, momentum_start=0.5, momentum_warmup=2
    )
    for factor in (0.5, 0.7, 0.9, 0.9):
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.randn(parameter.shape)
            gradient = parameter.grad.double()
            momenta[number] = factor * momenta[number] + (1 - factor) * gradient
            left, _, right = torch.linalg.svd(gradient + factor * (momenta[number] - gradient), full_matrices=False)
            update = 0.2 * max(parameter.shape) ** 0.5 * left @ right
            expected[number] = expected[number] * (1 - 0.1 * 0.5) - 0.1 * update
        before = [p.detach().clone() for p in parameters]
        optimizer.step()
        for parameter, start, end in zip(parameters, before, expected, strict=True):
            moved = float((parameter - start).norm().detach())
            assert float((parameter - end).norm().detach()) < 0.06 * moved
            with torch.no_grad():
                parameter.copy_(end)


def test_normuon_divides_rows_by_their_size_over_time_and_keeps_the_norm_of_the_update():
    torch.manual_seed(0)
    shapes = [(12, 32), (32, 12), (12, 32)]
    plain = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    scaled = [nn.Parameter(each.detach().clone()) for each in plain]
    settings = {"lr": 0.1, "momentum": 0.9, "momentum_start": 0.9, "momentum_warmup": 0}
    muon, normuon = MatrixMuon(plain, **settings, row_beta=None), MatrixMuon(scaled, **settings, row_beta=0.8)
    means = [torch.zeros(rows, 1) for rows, _ in shapes]
    for step in range(1, 4):
        for one, other in zip(plain, scaled, strict=True):
            one.grad = other.grad = torch.randn(one.shape)
        before = [[each.detach().clone() for each in parameters] for parameters in (plain, scaled)]
        muon.step()
        normuon.step()
        for number, (start, end, other_start, other_end) in enumerate(
            zip(before[0], plain, before[1], scaled, strict=True)
        ):
            update, found = (end - start).detach(), (other_end - other_start).detach()
            squares = update.square().mean(1, keepdim=True)
            means[number] = 0.8 * means[number] + 0.2 * squares
            expected = update / (means[number] / (1 - 0.8**step)).sqrt()
            torch.testing.assert_close(found, expected * (update.norm() / expected.norm()), rtol=1e-4, atol=1e-6)


def test_normuon_leaves_a_matrix_without_a_gradient_where_it_is():
    parameter = nn.Parameter(torch.randn(4, 8))
    before = parameter.detach().clone()
    parameter.grad = torch.zeros(4, 8)
    MatrixMuon([parameter], lr=0.1, momentum=0.9, momentum_start=0.9, momentum_warmup=0, row_beta=0.95).step()
    assert torch.equal(parameter, before)


@pytest.mark.parametrize("shape", [(3, 24, 96), (2, 96, 24), (1, 40, 40)])
def test_orthogonal_matrices_have_singular_values_near_one(shape):
    made = orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e-3)
    values = torch.linalg.svdvals(made.float())
    assert made.shape == shape
    assert 0.8 < float(values.min()) <= float(values.max()) < 1.2


def test_muon_gives_embedding_vectors_and_head_their_own_rates():
    words = ["optimizer=muon", "optimizer.embedding_lr=1e-2", "optimizer.head_lr=2e-2", "optimizer.vector_lr=3e-2"]
    model = build_model(compose(["model=llama-tiny", "tokenizer=bytes", "model.tied_head=false"]).config.model, seed=0)
    config = compose(words).config.optimizer
    optimizer = make_optimizer(model, config, fused=False)
    of = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    kinds = (model.blocks["0"].mlp.up, model.embedding.tokens, model.head.projection, model.head.norm)
    assert [of[id(module.weight)] for module in kinds] == [config.lr, 1e-2, 2e-2, 3e-2]


def test_a_checkpoint_from_before_row_beta_is_muons():
    config = compose(["optimizer=muon"]).config.optimizer
    model = scaled("standard")
    optimizer = make_optimizer(model, config, fused=False)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        group.pop("row_beta", None)
    optimizer.load_state_dict(saved)
    muon_steps(model, optimizer, range(1))


def test_muon_survives_a_checkpoint():
    words = ["optimizer=muon", "optimizer.momentum_start=0.5", "optimizer.momentum_warmup=4", "optimizer.row_beta=0.9"]
    config = compose(words).config.optimizer
    model, again = scaled("standard"), scaled("standard")
    first, second = make_optimizer(model, config, fused=False), make_optimizer(again, config, fused=False)
    muon_steps(model, first, range(2))
    muon_steps(again, second, range(2))
    resumed = make_optimizer(again, config, fused=False)
    resumed.load_state_dict(second.state_dict())
    muon_steps(model, first, range(2, 4))
    muon_steps(again, resumed, range(2, 4))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_another_optimizer_than_the_recipes_leaves_out_what_it_does_not_have(caplog, tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()  # beside groups of one's own files are read anew, and so it is said again
    monkeypatch.chdir(tmp_path)
    config = compose(["recipe=modern-124m", "optimizer=adamw"]).config.optimizer
    assert config.name == "adamw" and config.lr == 3.6e-3
    assert (
        "optimizer.embedding_lr of recipe/modern-124m.yaml is left out: optimizer=adamw does not have it" in caplog.text
    )
    with pytest.raises(ConfigError, match="no such setting"):
        compose(["recipe=modern-124m", "optimizer=adamw", "optimizer.embedding_lr=1e-3"])


def test_muon_leaves_a_model_without_hidden_matrices_to_adamw():
    model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 11))
    config = compose(["optimizer=muon"]).config.optimizer
    optimizer = make_optimizer(model, config, fused=False)
    before = model[0].weight.detach().clone()
    model(torch.arange(11)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


@pytest.mark.parametrize("declared", OPTIMIZERS, ids=lambda declared: declared.__name__)
def test_the_state_that_planning_counts_is_the_state_that_an_optimizer_keeps(model, declared):
    """Per parameter of the blocks' matrices and of all others, after one step."""
    name = declared.__name__.removesuffix("Config").removesuffix("Optimizer").lower()
    words = ["optimizer.target=torch.optim.NAdam", "optimizer.lr=1e-3"] if name == "custom" else []
    optimizer = make_optimizer(model, compose([f"optimizer={name}", *words]).config.optimizer, fused=False)
    model.loss(torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long)).backward()
    optimizer.step()
    model.zero_grad()
    hidden = hidden_matrices(model)
    for parameter_name, parameter in model.named_parameters():
        slots = [slot for slot in optimizer.state[parameter].values() if slot.shape == parameter.shape]
        facts, held = declared.facts, sum(slot.nbytes for slot in slots) / parameter.numel()
        matrix = parameter_name in hidden and facts.matrix_state_bytes is not None
        assert held == (facts.matrix_state_bytes if matrix else facts.state_bytes)


def custom(target: str, *words: str) -> torch.optim.Optimizer:
    config = compose(["optimizer=custom", f"optimizer.target={target}", "optimizer.lr=1e-2", *words]).config.optimizer
    return make_optimizer(nn.Sequential(nn.Linear(3, 2)), config, fused=False)


def test_a_class_path_is_an_optimizer_and_other_keys_are_its_arguments():
    optimizer = custom("torch.optim.NAdam", "optimizer.momentum_decay=0.1", "optimizer.weight_decay=0.2")
    assert isinstance(optimizer, torch.optim.NAdam)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]
    assert {(group["lr"], group["momentum_decay"]) for group in optimizer.param_groups} == {(1e-2, 0.1)}


@pytest.mark.parametrize(
    ("words", "key", "problem"),
    [
        (["torch.optim.NAdamW"], "optimizer.target", "has no NAdamW"),
        (["torch.nn.Linear"], "optimizer.target", "is not a torch.optim.Optimizer"),
        (["torch.optim.NAdam", "optimizer.momentum_decai=0.1"], "optimizer.momentum_decai", "has no such argument"),
        (["torch.optim.LBFGS", "optimizer.weight_decay=0.1"], "optimizer.weight_decay", "has no argument weight_decay"),
        (["torch.optim.lr_scheduler.LambdaLR"], "optimizer.target", "is not a torch.optim.Optimizer"),
    ],
)
def test_a_class_that_does_not_serve_is_refused_with_the_key(words, key, problem):
    with pytest.raises(ConfigError, match=problem) as refused:
        custom(*words)
    assert refused.value.key == key


def test_a_misspelt_setting_of_a_built_in_optimizer_is_still_an_error():
    with pytest.raises(ConfigError, match="no such setting"):
        compose(["optimizer.momentum=0.9"])
    with pytest.raises(ConfigError, match="must be given"):
        compose(["optimizer=custom", "optimizer.lr=1e-3"])
