"""Reads the C header of XLA's foreign function interface in a framework's wheel (xla/ffi/api/c_api.h).

Pure. client/xla/xla_ffi.h says why it is read.
"""

import re

_FUNCTIONS = ("Error_Create", "Error_Destroy", "Future_Create", "Future_SetAvailable",
              "Future_SetError", "Handler_Register")


def layout(header: str, framework: str) -> list[int]:
    """Returns the struct Layout of client/xla/xla_ffi.h, from the header's text.

    framework: its name and version, for the error. Raises ImportError if the text is not such a header.
    """
    versions = [re.search(rf"#define XLA_FFI_API_{part} +(\d+)", header)
                for part in ("MAJOR", "MINOR")]
    functions = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\);", header)
    missing = [name for name in _FUNCTIONS if name not in functions]
    numbers = [int(version.group(1)) for version in versions if version is not None]
    if missing or len(numbers) < len(versions):
        raise ImportError(f"{framework}: its xla/ffi/api/c_api.h lacks "
                          f"{', '.join(missing) or 'the version'}; Maypole does not know this "
                          "version's foreign function interface")
    return numbers + [functions.index(name) for name in _FUNCTIONS]
