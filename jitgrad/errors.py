"""Every error and warning of jitgrad: one root, Python's own families kept catchable.

A message says what happened (with shapes, dtypes and the operation), where in the user's code, and what to do next.
"""

from __future__ import annotations

import os
import sys

__all__ = [
    "AnomalyError",
    "ArgumentError",
    "CacheWarning",
    "ConfigError",
    "ConversionError",
    "DefinitionError",
    "DtypeError",
    "GradientError",
    "GradientWarning",
    "GraphError",
    "InPlaceError",
    "IndexingError",
    "JitgradError",
    "LeakedTracerError",
    "NoAttributeError",
    "NoGraphError",
    "NotDifferentiableError",
    "RecompileWarning",
    "ReleasedGraphError",
    "ShapeError",
    "TracedValueError",
    "UnsupportedError",
    "is_ours",
    "user_line",
]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class _Ours(dict[str, bool]):
    """Whether a file is one of the package, by its name."""

    def __missing__(self, file: str) -> bool:
        return self.setdefault(file, file.startswith(_PACKAGE))


is_ours = _Ours().__getitem__


class JitgradError(Exception):
    """Root of every error that jitgrad raises on purpose."""


class ShapeError(JitgradError, ValueError):
    """Shapes, axes or extents that do not fit together."""


class IndexingError(JitgradError, IndexError):
    """An index that is out of bounds, or of a kind that arrays do not take."""


class ArgumentError(JitgradError, ValueError):
    """An argument whose value is not acceptable."""


class ConfigError(JitgradError, ValueError):
    """A setting (environment variable or option) that cannot be used."""


class DtypeError(JitgradError, TypeError):
    """A dtype that the operation, or differentiation, does not support."""


class UnsupportedError(JitgradError, TypeError):
    """A NumPy function, argument or object that jitgrad does not handle."""


class NoAttributeError(JitgradError, AttributeError):
    """A name that other libraries have and that is called otherwise here."""


class ConversionError(JitgradError, RuntimeError, TypeError):
    """A tracked tensor cannot leave the graph silently (``numpy()``, ``np.asarray``, ``float`` in a transform)."""


class DefinitionError(JitgradError, TypeError):
    """An operation block that is incomplete or contradicts itself."""


class GraphError(JitgradError, RuntimeError):
    """Root of the faults of recorded graphs."""


class NoGraphError(GraphError):
    """``backward`` of a tensor that no recorded operation leads to."""


class ReleasedGraphError(GraphError):
    """A second ``backward`` through a graph that the first one released."""


class InPlaceError(GraphError):
    """A value that backward needs was overwritten in place, or the write itself is not allowed."""


class LeakedTracerError(GraphError):
    """A value of a traced function was used outside of its trace."""


class TracedValueError(GraphError, TypeError):
    """Python asked for the number behind a traced value (``if``, ``bool``, ``int``, ``float``)."""


class NotDifferentiableError(GraphError):
    """An operation on the path has no derivative."""


class GradientError(GraphError):
    """A gradient check failed."""


class AnomalyError(GraphError):
    """A gradient turned NaN or infinite while ``detect_anomaly`` was on."""


class GradientWarning(UserWarning):
    """Something legal that probably loses a gradient."""


class CacheWarning(UserWarning):
    """The kernel cache on disk could not be used as it is."""


class RecompileWarning(UserWarning):
    """A jitted function keeps being traced or compiled anew because of one argument."""


def user_line(depth: int = 1) -> str:
    """``file:line`` of the nearest caller outside the package: the line of the user's own code."""
    frame = sys._getframe(depth)
    while is_ours(frame.f_code.co_filename):
        caller = frame.f_back
        if caller is None:
            break
        frame = caller
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
