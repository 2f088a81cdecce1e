"""Loads code that is no package: programs of roles and parts of jobs."""

import importlib.util
import sys
from importlib.machinery import SourceFileLoader


def load(path, name):
    """Return the module at a path; `name` must not be another module's."""
    loader = SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    # Dataclasses look their module up by name.
    sys.modules[name] = module
    loader.exec_module(module)
    return module
