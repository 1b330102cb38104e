"""Low-level helpers, which do not import any other package of manyviews.

Modules are imported lazily, when one of their names is first used, so that the command line starts without torch.
"""

from manyviews.utils.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
