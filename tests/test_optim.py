"""What each optimiser moves, and by how much."""

import torch
from training_helpers import trainer

from minicl.optim import Muon, orthogonalise


def test_every_parameter_is_in_one_group():
    for name in ("adam", "adamw", "muon"):
        training = trainer(optimizer=name)
        grouped = [id(p) for group in training.optimizer.param_groups for p in group["params"]]
        assert sorted(grouped) == sorted(id(p) for p in training.model.parameters()), name


def test_weight_decay_touches_matrices_only():
    training = trainer(optimizer="adamw", weight_decay=0.5, lr=0.1, warmup=0)
    decays = {id(p): g["weight_decay"] for g in training.optimizer.param_groups for p in g["params"]}
    for p in training.model.parameters():
        assert decays[id(p)] == (0.5 if p.ndim > 1 else 0)


def test_muon_sets_singular_values_to_about_one_and_keeps_their_directions():
    torch.manual_seed(0)
    for shape in ((2, 8, 24), (3, 24, 8)):
        given = torch.randn(shape, dtype=torch.double)
        left, values, right = torch.linalg.svd(given, full_matrices=False)
        inside = left.mT @ orthogonalise(given) @ right.mT
        new = inside.diagonal(dim1=1, dim2=2)
        assert values.max() > 2 * values.min() and new.min() > 0.6 and new.max() < 1.3
        torch.testing.assert_close(inside, torch.diag_embed(new), rtol=0, atol=1e-9)


def test_muon_moves_what_it_should():
    """Matrices in the blocks by the same distance whatever their gradient; the rest as Adam does."""
    muon, adam = (trainer(optimizer=name, lr=0.01, matrix_lr=0.5) for name in ("muon", "adam"))
    before = {name: p.clone() for name, p in muon.model.named_parameters()}
    for training in (muon, adam):
        training.update()
    for name, p in muon.model.named_parameters():
        moved, by_adam = p - before[name], dict(adam.model.named_parameters())[name] - before[name]
        if name.startswith("blocks.") and p.ndim == 2:
            rate = 0.5 / muon.config.train.warmup * max(1, p.shape[0] / p.shape[1]) ** 0.5
            assert 0.6 * rate < torch.linalg.svdvals(moved.detach())[0] < 1.3 * rate, name
        else:
            torch.testing.assert_close(moved, by_adam)


def test_muon_in_groups_equals_muon_matrix_by_matrix():
    """Three steps, against the plain rule written for one matrix at a time."""
    torch.manual_seed(0)
    matrices = [torch.nn.Parameter(torch.randn(shape)) for shape in ((4, 6), (8, 4), (4, 6))]
    expected = [p.detach().clone() for p in matrices]
    averages = [torch.zeros_like(p) for p in expected]
    muon = Muon(matrices, 1.0, torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]))
    muon.param_groups[0]["lr"] = 0.1
    for _ in range(3):
        for p, value, average in zip(matrices, expected, averages, strict=True):
            p.grad = torch.randn(p.shape)
            average.mul_(0.95).add_(p.grad, alpha=0.05)
            along = 0.05 * p.grad + 0.95 * average
            value -= 0.1 * max(1, len(p) / p.shape[1]) ** 0.5 * orthogonalise(along[None])[0]
        muon.step()
    for p, value in zip(matrices, expected, strict=True):
        torch.testing.assert_close(p.detach(), value, rtol=1e-4, atol=1e-5)
