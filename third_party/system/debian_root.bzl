"""debian_root: where the static archives of Debian's packages for another processor are.

`libraries.bzl` has AARCH64_LIBRARIES, their directory. Nothing is fetched here: it
is that of tools/aarch64/debian_root.sh, and of no file if nobody has made it.
"""

def _impl(ctx):
    found = ctx.execute([ctx.path(ctx.attr._script)])
    path = "/nonexistent" if found.return_code else found.stdout.strip()
    ctx.file("BUILD.bazel")
    ctx.file("libraries.bzl", "AARCH64_LIBRARIES = %r\n" % (path + "/usr/lib/aarch64-linux-gnu/"))

debian_root = repository_rule(
    implementation = _impl,
    local = True,
    environ = [
        "HOME",
        "XDG_CACHE_HOME",
    ],
    attrs = {
        "_script": attr.label(default = "@//tools/aarch64:debian_root.sh", allow_single_file = True),
    },
)
