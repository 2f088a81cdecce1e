"""gpubed turns a testbed into a ready, verified Horovod GPU cluster."""


def __getattr__(name: str) -> str:
    # Looking the version up loads much; the engine's children import this package and need none.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("gpubed")
