# timm and transformers import torchvision, whose compiled operators may be missing or may not load
# beside the torch under test. Nothing here calls them, so it is enough that their names exist.
#
# SPDX-License-Identifier: MIT
import functools
import importlib
import re
import sys

import torch


@functools.cache
def import_torchvision():
    """Imports torchvision, with stand-ins for the operators that its import asks for in vain."""
    stand_ins = torch.library.Library("torchvision", "FRAGMENT")
    while True:
        try:
            # The library object is returned to be kept: the names live as long as it does.
            return importlib.import_module("torchvision"), stand_ins
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if not missing:
                raise
            stand_ins.define(f"{missing[1]}(Tensor never_called) -> Tensor")
            for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
