# Small but real models with random weights, and data that is on every machine.
#
# A model of the zoo is (module, loss): loss() runs the forward pass on the next batch and returns
# a scalar. Dropout is on everywhere, so that a disturbed random generator shows.
#
# SPDX-License-Identifier: MIT
import argparse
import functools
import inspect

import torch
import torch.nn.functional as F
from torch import nn

import shim


@functools.cache
def digits(size):
    """Handwritten digits as colour images: (1797, 3, size, size) floats, (1797,) labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 16 - 0.3
    images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    shift = torch.linspace(-0.2, 0.2, 3).view(1, 3, 1, 1)
    return images.expand(-1, 3, -1, -1) + shift, torch.from_numpy(data.target)


@functools.cache
def text():
    """A long vector of byte tokens: the source of a module that is mostly documentation."""
    return torch.frombuffer(bytearray(inspect.getsource(argparse).encode()), dtype=torch.uint8).long()


class Batches:
    """Calls f with the numbers of the samples of the next batch."""

    def __init__(self, total, size, f):
        self.total, self.size, self.f, self.next = total, size, f, 0

    def __call__(self):
        which = (torch.arange(self.size) * 37 + self.next) % self.total
        self.next += self.size * 37
        return self.f(which)


def classify(model, size, batch=8):
    images, labels = digits(size)
    return model, Batches(len(labels), batch,
                          lambda i: F.cross_entropy(model(images[i]), labels[i]))


def read_text(model, batch, length, loss):
    tokens = text()
    starts = len(tokens) - length - 1

    def step(i):
        rows = (i * 211 % starts)[:, None] + torch.arange(length + 1)
        return loss(tokens[rows])

    return model, Batches(starts, batch, step)


def predict_text(model):
    """Each token from those before it, by a model of transformers."""
    return read_text(model, 4, 96, lambda t: F.cross_entropy(
        model(t[:, :-1]).logits.flatten(0, 1), t[:, 1:].flatten()))


def deit_tiny(**more):
    shim.import_torchvision()
    import timm

    return classify(timm.create_model("deit_tiny_patch16_224", img_size=96, depth=3, num_classes=10,
                                      drop_rate=0.1, proj_drop_rate=0.1, attn_drop_rate=0.1,
                                      drop_path_rate=0.1, **more), 96)


def swin_tiny():
    shim.import_torchvision()
    import timm

    return classify(timm.create_model("swin_tiny_patch4_window7_224", img_size=64, window_size=4,
                                      embed_dim=48, depths=(2, 2, 2, 2), num_classes=10,
                                      drop_rate=0.1), 64)


def timm_classifier(name, size, **more):
    shim.import_torchvision()
    import timm

    return classify(timm.create_model(name, num_classes=10, **more), size)


def resnet18():
    return timm_classifier("resnet18", 64, drop_rate=0.1)


def convnext_atto():
    return timm_classifier("convnext_atto", 64, drop_path_rate=0.1)


def efficientnet_b0():
    return timm_classifier("efficientnet_b0", 64, drop_rate=0.1)


def gpt2(attention="sdpa", **more):
    shim.import_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=256, n_positions=128, n_embd=128, n_layer=2, n_head=4, use_cache=False,
        attn_implementation=attention, bos_token_id=0, eos_token_id=0, **more)).train()
    return predict_text(model)


def llama(attention="sdpa"):
    shim.import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, use_cache=False,
        attention_dropout=0.1, attn_implementation=attention, pad_token_id=None, bos_token_id=0,
        eos_token_id=0)).train()
    return predict_text(model)


def bert(attention="sdpa"):
    shim.import_torchvision()
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(
        vocab_size=256, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=128, attn_implementation=attention)).train()

    def loss(tokens):
        tokens = tokens[:, :-1]
        hidden = torch.rand(tokens.shape) < 0.15
        padding = torch.ones_like(tokens)
        padding[1::2, -20:] = 0
        logits = model(tokens.masked_fill(hidden, 1), attention_mask=padding).logits
        return F.cross_entropy(logits[hidden], tokens[hidden])

    return read_text(model, 4, 96, loss)


def t5(attention="eager"):
    shim.import_torchvision()
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(
        vocab_size=256, d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        attn_implementation=attention)).train()
    return read_text(model, 4, 96, lambda t: model(input_ids=t[:, :64], labels=t[:, 64:].contiguous()).loss)


class UNet(nn.Module):
    """Two levels, group norm, attention in the middle: what diffusion models are made of."""

    def __init__(self, width=32):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = self._block(width, width)
        self.halve = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.low = self._block(2 * width, 2 * width)
        self.norm = nn.GroupNorm(8, 2 * width)
        self.attend = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = self._block(3 * width, width)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    @staticmethod
    def _block(inside, outside):
        return nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(),
                             nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(8, outside),
                             nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outside, outside, 3, padding=1))

    def forward(self, x):
        x = self.first(x)
        x = x + self.down(x)
        low = self.halve(x)
        low = low + self.low(low)
        flat = self.norm(low).flatten(2).transpose(1, 2)
        low = low + self.attend(flat, flat, flat)[0].transpose(1, 2).reshape(low.shape)
        return self.last(self.up(torch.cat([F.interpolate(low, scale_factor=2), x], 1)))


def unet():
    model = UNet()
    images, labels = digits(32)

    def loss(i):
        clean = images[i]
        noise = torch.randn_like(clean)
        level = torch.rand(len(i), 1, 1, 1)
        return F.mse_loss(model(clean * (1 - level) + noise * level), noise)

    return model, Batches(len(labels), 4, loss)


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 64)
        self.lstm = nn.LSTM(64, 128, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(128, 256)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


def lstm():
    model = LSTM()
    return read_text(model, 8, 48, lambda t: F.cross_entropy(
        model(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten()))


class GraphLayer(nn.Module):
    """Messages along edges, summed by scatter_add, with attention over each node's edges."""

    def __init__(self, inside, outside):
        super().__init__()
        self.message = nn.Linear(2 * inside, outside)
        self.score = nn.Linear(2 * inside, 1)
        self.own = nn.Linear(inside, outside)

    def forward(self, nodes, source, target):
        pair = torch.cat([nodes[source], nodes[target]], -1)
        weight = F.leaky_relu(self.score(pair), 0.2).exp()
        message = weight * self.message(pair)
        index = target[:, None].expand_as(message)
        total = torch.zeros(len(nodes), message.shape[1], dtype=message.dtype)
        total = total.scatter_add(0, index, message)
        norm = torch.zeros(len(nodes), 1, dtype=weight.dtype).index_add(0, target, weight)
        return self.own(nodes) + total / norm.clamp_min(1e-6)


class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = GraphLayer(64, 64), GraphLayer(64, 64), nn.Linear(64, 10)

    def forward(self, nodes, source, target):
        nodes = F.dropout(F.elu(self.one(nodes, source, target)), 0.1)
        return self.head(F.elu(self.two(nodes, source, target)))


def gnn():
    """Digits as nodes, each with edges to its nearest neighbours."""
    model = GNN()
    images, labels = digits(8)
    nodes = images[:, 0].flatten(1)[:400]
    near = torch.cdist(nodes, nodes).topk(6, largest=False).indices
    target = torch.arange(len(nodes)).repeat_interleave(6)
    return model, Batches(400, 64, lambda i: F.cross_entropy(
        model(nodes, near.flatten(), target)[i], labels[:400][i]))


class LoRA(nn.Module):
    """A frozen linear layer with a trained update of low rank beside it."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.02)

    def forward(self, x):
        return self.base(x) + self.up(self.down(F.dropout(x, 0.05, self.training)))


def lora():
    model, loss = llama()
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, LoRA(getattr(layer.self_attn, name)))
    return model, loss


def bitfit():
    """Only biases and norms are trained."""
    model, loss = bert()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return model, loss


# name -> (builder, largest relative error of the gradient in float32 under a lossy policy)
ZOO = {
    "deit_tiny": (deit_tiny, 0.006),
    "swin_tiny": (swin_tiny, 0.006),
    "resnet18": (resnet18, 0.008),
    "convnext_atto": (convnext_atto, 0.006),
    "efficientnet_b0": (efficientnet_b0, 0.006),
    "gpt2": (gpt2, 0.006),
    "llama": (llama, 0.006),
    "bert": (bert, 0.006),
    "t5": (t5, 0.008),
    "unet": (unet, 0.006),
    "lstm": (lstm, 0.006),
    "gnn": (gnn, 0.006),
    "lora": (lora, 0.001),
    "bitfit": (bitfit, 0.006),
}
