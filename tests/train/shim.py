# timm and transformers import torchvision, whose compiled operators may be missing or may not load
# beside the torch under test. Nothing here calls them, so it is enough that their names exist.
#
# SPDX-License-Identifier: MIT
import functools
import importlib.util
import pathlib
import re

import torch


PACKAGE = pathlib.Path(importlib.util.find_spec("torchvision").submodule_search_locations[0])


def has_operators():
    """Whether torchvision's compiled part is there and loads beside this torch."""
    try:
        for library in PACKAGE.glob("_C*.so"):
            torch.ops.load_library(library)
            return True
    except OSError:
        pass
    return False


def operators_asked_for():
    """The names that torchvision's import wants to find: it registers what shapes they give."""
    text = (PACKAGE / "_meta_registrations.py").read_text()
    return {a or b for a, b in re.findall(r'@register_meta\("(\w+)"|register_fake\("torchvision::(\w+)"',
                                          text)}


@functools.cache
def import_torchvision():
    """Imports torchvision, with stand-ins for its operators where there are none."""
    stand_ins = torch.library.Library("torchvision", "FRAGMENT")
    if not has_operators():
        for name in operators_asked_for():
            stand_ins.define(f"{name}(Tensor never_called) -> Tensor")
    # The library object is returned to be kept: the names live as long as it does.
    return importlib.import_module("torchvision"), stand_ins
