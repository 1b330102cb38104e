"""Low-level helpers, which do not import any other package of manyviews; their modules are imported on first use."""

from manyviews.utils.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
