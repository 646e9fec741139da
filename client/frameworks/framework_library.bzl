"""The libraries of frameworks, which lie beside libmaypole.so."""

# Which frameworks have one. deploy/build.sh and tools/packages/wheel.py read this
# list.
FRAMEWORKS = [
    "jax",
    "mxnet",
    "tensorflow",
]

# For data of tests, and for packages.
FRAMEWORK_LIBRARIES = ["//client:libmaypole_%s.so" % name for name in FRAMEWORKS]

def framework_library(name, srcs, deps = []):
    """libmaypole_NAME.so, and `NAME_library` with the same code for tests.

    The library needs only libc: it has its own C++ runtime, finds the functions
    of libmaypole and of the framework at run time, and exports only
    maypole_NAME_*.
    """
    native.cc_library(
        name = name + "_library",
        srcs = srcs,
        copts = ["-fvisibility=hidden"],
        deps = ["//client:framework_support"] + deps,
        alwayslink = True,
    )
    native.genrule(
        name = name + "_exports",
        outs = ["libmaypole_%s.lds" % name],
        cmd = "echo '{ global: maypole_%s_*; local: *; };' > $@" % name,
    )
    native.cc_binary(
        name = "libmaypole_%s.so" % name,
        linkopts = [
            "-Wl,--version-script=$(location libmaypole_%s.lds)" % name,
            "-Wl,--no-undefined",
            "-static-libgcc",
            "-l:libstdc++.a",
            "-Wl,--as-needed",
        ],
        linkshared = True,
        deps = [
            "libmaypole_%s.lds" % name,
            ":%s_library" % name,
        ],
    )
