"""Contrastive learning from any number of views.

`import manyviews` is fast: submodules are imported when their names are first used.
"""

from manyviews.utils import attach_stub

__version__ = "0.2.0.dev0"
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
