"""How the libraries that run inside other programs are linked."""

# Each has its own C++ runtime.
_LIBRARY_LINKOPTS = [
    "-Wl,--no-undefined",
    "-static-libgcc",
    "-l:libstdc++.a",
    "-Wl,--as-needed",
]

def runtime_library(name, exports, deps):
    """The shared library `name`, for this system, and portable/`name`, for the wheel.

    Args:
      name: of the file.
      exports: the linker's version script: what the library exports.
      deps: its code.
    """
    for path, more, tags in ((name, [], []), ("portable/" + name, ["//third_party/portable"], ["nosan"])):
        native.cc_binary(
            name = path,
            linkopts = ["-Wl,--version-script=$(location %s)" % exports] + _LIBRARY_LINKOPTS,
            linkshared = True,
            tags = tags,
            deps = [exports] + deps + more,
        )
