# The models that are measured, built from configurations with random weights: nothing is downloaded.
#
# A zoo entry is a function from a batch size to (module, forward), where forward() runs the model on
# fixed inputs and gives the loss. Knows nothing of libmesa.
#
# SPDX-License-Identifier: MIT
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "train"))
from shim import import_torchvision  # noqa: E402

IMAGE_PIXELS = {"resnet18": 128}  # others: 224
TOKENS = 128
VOCABULARY = 1000
LANGUAGE = {"layers": 4, "width": 256, "heads": 4}


def vision(name):
    def build(batch):
        torchvision = import_torchvision()  # noqa: F841: timm needs it importable
        import timm

        model = timm.create_model(name, pretrained=False, num_classes=100)
        pixels = IMAGE_PIXELS.get(name, 224)
        images = torch.randn(batch, 3, pixels, pixels)
        labels = torch.randint(100, (batch,))
        return model, lambda: F.cross_entropy(model(images), labels)

    return build


def language(model_class, config_class, **settings):
    """A model of transformers that computes its own loss from labels."""

    def build(batch):
        torchvision = import_torchvision()  # noqa: F841: transformers looks for it
        import transformers

        config = getattr(transformers, config_class)(vocab_size=VOCABULARY, **settings)
        model = getattr(transformers, model_class)(config)
        tokens = torch.randint(VOCABULARY, (batch, TOKENS))
        extra = {} if config.is_encoder_decoder else {"use_cache": False}
        if config_class == "BertConfig":
            extra = {}
        return model, lambda: model(input_ids=tokens, labels=tokens, **extra).loss

    return build


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained low-rank addition."""

    def __init__(self, frozen, rank):
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # as usual: training begins at the frozen model

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


def lora(batch, rank=8):
    """Llama, frozen but for low-rank additions to every projection of attention and MLP."""
    model, forward = llama(batch)
    model.requires_grad_(False)
    for block in model.model.layers:
        for part in (block.self_attn, block.mlp):
            for name, layer in list(part.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(part, name, LoraLinear(layer, rank))
    return model, forward


def relu_net(batch):
    """Convolutions, batch norms, ReLUs and pools in a row, then linear layers."""
    layers, channels = [], 3
    for width in (32, 64, 128, 256):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                   nn.MaxPool2d(2)]
        channels = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 16, 256), nn.ReLU(),
                          nn.Linear(256, 100))
    images = torch.randn(batch, 3, 64, 64)
    labels = torch.randint(100, (batch,))
    return model, lambda: F.cross_entropy(model(images), labels)


gpt2 = language("GPT2LMHeadModel", "GPT2Config", n_positions=TOKENS, n_embd=LANGUAGE["width"],
                n_layer=LANGUAGE["layers"], n_head=LANGUAGE["heads"], bos_token_id=0, eos_token_id=0)
bert = language("BertForMaskedLM", "BertConfig", max_position_embeddings=TOKENS,
                hidden_size=LANGUAGE["width"], num_hidden_layers=LANGUAGE["layers"],
                num_attention_heads=LANGUAGE["heads"], intermediate_size=4 * LANGUAGE["width"])
t5 = language("T5ForConditionalGeneration", "T5Config", d_model=LANGUAGE["width"], d_kv=64,
              d_ff=4 * LANGUAGE["width"], num_layers=LANGUAGE["layers"],
              num_heads=LANGUAGE["heads"], decoder_start_token_id=0)
llama = language("LlamaForCausalLM", "LlamaConfig", hidden_size=LANGUAGE["width"],
                 intermediate_size=704, num_hidden_layers=LANGUAGE["layers"],
                 num_attention_heads=LANGUAGE["heads"], max_position_embeddings=TOKENS)

ZOO = {
    "deit_tiny": vision("deit_tiny_patch16_224"),
    "swin_tiny": vision("swin_tiny_patch4_window7_224"),
    "resnet18": vision("resnet18"),
    "relu_net": relu_net,
    "gpt2": gpt2,
    "bert": bert,
    "t5": t5,
    "llama": llama,
    "llama_lora": lora,
}
