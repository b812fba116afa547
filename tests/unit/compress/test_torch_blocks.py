"""Attention heads, transformer layers and recurrent units of torch modules are really removed."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from penstock.compress import left_alone, open_model, quantize, remove_channels, save_model, width  # noqa: E402
from penstock.compress.framework import framework_of  # noqa: E402
from penstock.core.errors import InvalidInput  # noqa: E402

RNG = np.random.default_rng(0)


class Attentive(nn.Module):
    """Self-attention with a residual add; the pool and the head at the end are cut along."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.into = nn.Linear(6, width)
        self.place = nn.Parameter(torch.randn(1, 5, width))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        x = self.into(x) + self.place
        made, _ = self.attention(x, x, x, need_weights=False)
        return self.out((x + made).mean(1))


class Words(nn.Module):
    """A small text classifier: embedding, class token, encoder, head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.token = nn.Embedding(30, 32), nn.Parameter(torch.randn(1, 1, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)
        self.out = nn.Linear(32, 4)

    def forward(self, tokens):
        x = self.table(tokens)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], 1)
        return self.out(self.encoder(x)[:, 0])


class Series(nn.Module):
    """A bidirectional LSTM of two layers, a GRU, and heads on the last output and on the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(5, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.second = nn.GRU(24, 10, batch_first=True)
        self.one, self.two = nn.Linear(10, 2), nn.Linear(10, 2)

    def forward(self, x):
        x, _ = self.first(x)
        x, state = self.second(x)
        return self.one(x[:, -1]) + self.two(state[-1])


def rows(*shape: int) -> np.ndarray:
    return RNG.random(shape).astype(np.float32)


def tokens() -> np.ndarray:
    return RNG.integers(0, 30, (3, 7))


CASES = [(Attentive, lambda: rows(3, 5, 6)), (Words, tokens), (Series, lambda: rows(3, 7, 5))]


@pytest.mark.parametrize(("build", "example"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_full_width_is_the_same_function_and_half_width_runs(build, example, tmp_path) -> None:
    torch.manual_seed(0)
    model, x = build().eval(), example()
    assert left_alone(model, x) == []
    same, small = width(model, 1.0, example=x), width(model, 0.5, example=x)
    given = torch.from_numpy(x)
    assert torch.allclose(same(given), model(given), atol=1e-5)
    assert small(given).shape == model(given).shape
    assert framework_of(small).parameters(small) < 0.5 * framework_of(model).parameters(model)
    fresh = width(model, 0.5, init="fresh", example=x)
    assert [p.shape for p in fresh.parameters()] == [p.shape for p in small.parameters()]
    assert all(
        not torch.equal(a, b) for a, b in zip(fresh.parameters(), small.parameters(), strict=True) if a.std() > 0
    )
    again = open_model(save_model(small, tmp_path / "small.pt2", x))
    assert torch.allclose(again(given), small(given), atol=1e-5)


def test_heads_and_units_have_the_sizes_that_were_asked_for() -> None:
    small = width(Words(), 0.5, example=tokens())
    for layer in small.encoder.layers:
        heads = layer.self_attn
        assert (heads.num_heads, heads.head_dim, heads.embed_dim) == (2, 8, 16)
        assert heads.in_proj_weight.shape == (48, 16)
        assert (layer.linear1.out_features, layer.linear2.out_features) == (32, 16)
    series = width(Series(), 0.5, example=rows(2, 7, 5))
    assert (series.first.hidden_size, series.second.input_size, series.second.hidden_size) == (6, 12, 5)
    assert series.first.weight_ih_l1_reverse.shape == (24, 12)


def test_removing_dead_heads_and_channels_changes_nothing() -> None:
    torch.manual_seed(1)
    model, x = Attentive().eval(), rows(3, 5, 6)
    heads = model.attention
    with torch.no_grad():
        # Channels 0..7 of the stream are dead: nobody writes them. So are heads 0 and 2 (rows 0..3 and 8..11).
        for part in (model.into.weight, model.into.bias, heads.out_proj.weight, heads.out_proj.bias):
            part[:8] = 0
        model.place[..., :8] = 0
        for start in (0, 8):
            for part in range(3):
                heads.in_proj_weight[part * 16 + start : part * 16 + start + 4] = 0
    small = remove_channels(model, 0.5, example=x)
    assert (small.attention.num_heads, small.attention.embed_dim) == (2, 8)
    assert torch.allclose(small(torch.from_numpy(x)), model(torch.from_numpy(x)), atol=1e-5)


def test_removing_dead_units_changes_nothing() -> None:
    torch.manual_seed(2)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.units, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x):
            return self.out(self.units(x)[0][:, -1])

    model, x = Plain().eval(), rows(3, 6, 4)
    with torch.no_grad():
        for weight in model.units.parameters():
            for gate in range(3):  # a unit whose gates see nothing stays at its start, 0
                weight[gate * 8 : gate * 8 + 4] = 0
    small = remove_channels(model, 0.5, example=x)
    assert small.units.hidden_size == 4
    assert torch.allclose(small(torch.from_numpy(x)), model(torch.from_numpy(x)), atol=1e-6)


def test_cross_attention_ties_both_streams() -> None:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 16), nn.Linear(6, 16)
            self.layer, self.out = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), nn.Linear(16, 2)

        def forward(self, x, memory):
            return self.out(self.layer(self.a(x), self.b(memory)))

    model, example = Cross().eval(), (rows(2, 3, 4), rows(2, 5, 6))
    small = width(model, 0.5, example=example)
    assert (small.a.out_features, small.b.out_features, small.layer.multihead_attn.num_heads) == (8, 8, 2)
    assert small(*map(torch.from_numpy, example)).shape == (2, 3, 2)


def test_heads_on_a_stream_that_must_stay_are_named() -> None:
    class Straight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 12)
            self.last = nn.Linear(12, 2)

        def forward(self, x):
            return self.last(self.out(self.attention(x, x, x)[0]))

    model, x = Straight(), rows(2, 3, 8)
    notes = left_alone(model, x)
    assert len(notes) == 1
    assert "'attention' (MultiheadAttention) keeps its heads" in notes[0]
    assert "inputs keep their sizes" in notes[0]
    small = width(model, 0.5, example=x)
    assert (small.attention.num_heads, small.out.out_features) == (2, 6)
    one_head = Attentive(16, 1)
    assert width(one_head, 0.5, example=rows(2, 5, 6)).attention.embed_dim == 16


@pytest.mark.parametrize(
    ("module", "said"),
    [(nn.LSTM(4, 6, proj_size=3, batch_first=True), "LSTM"), (nn.LSTMCell(4, 6), "LSTMCell")],
    ids=["projected", "cell"],
)
def test_recurrent_layers_that_cannot_be_cut_are_refused_by_name(module, said) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.units = module

        def forward(self, x):
            return self.units(x)[0]

    model = nn.Sequential(nn.Linear(4, 4), Holder())
    example = rows(2, 3, 4) if said == "LSTM" else rows(2, 4)
    assert any(f"'1.units' ({said}) is not a step" in note for note in left_alone(model, example))
    with pytest.raises(InvalidInput, match=said):
        width(model, 0.5, example=example)


def test_quantizing_a_transformer_and_a_recurrent_module(tmp_path) -> None:
    words, x = Words().eval(), tokens()
    given = torch.from_numpy(x)
    small = quantize(words, "int8").eval()
    assert torch.allclose(small(given), words(given), atol=0.1)
    again = open_model(save_model(small, tmp_path / "words.pt2", x))
    assert torch.allclose(again(given), small(given), atol=1e-4)
    series = Series().eval()
    with pytest.raises(InvalidInput, match="int8-dynamic"):
        quantize(nn.Sequential(nn.LSTM(4, 4)), "int8")
    dynamic, data = quantize(series, "int8-dynamic"), torch.from_numpy(rows(2, 7, 5))
    assert torch.allclose(dynamic(data), series(data), atol=0.1)
