"""Options of numba.njit for the functions of compiled loops. Pure: numba is not imported here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Of functions that Python calls: without the wrapper for calls from C, which nobody makes.
ENTERED: Mapping[str, Any] = MappingProxyType({"cache": True, "no_cfunc_wrapper": True})
# Of functions that only compiled ones call: without the wrapper for calls from Python, which takes long to compile.
INNER: Mapping[str, Any] = MappingProxyType({**ENTERED, "no_cpython_wrapper": True})
# Of those that make no array and keep none, either: numba does not count references to the arrays that they are given.
# It counts an array of a tuple each time that it is named, which took nine tenths of the time of some loops. Who calls
# such a function holds the arrays.
IN_PLACE: Mapping[str, Any] = MappingProxyType({**INNER, "_nrt": False})
ENTERED_IN_PLACE: Mapping[str, Any] = MappingProxyType({**ENTERED, "_nrt": False})  # the same, called from Python
# Of those that loops call for every item, with tables of many arrays: copied into the loop. A call passes seven words
# for each array, which takes longer than what such a function does.
INLINED: Mapping[str, Any] = MappingProxyType({**IN_PLACE, "forceinline": True})
ENTERED_INLINED: Mapping[str, Any] = MappingProxyType({**ENTERED_IN_PLACE, "forceinline": True})  # from Python, too
