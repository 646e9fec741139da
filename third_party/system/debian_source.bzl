"""debian_source: the source of a Debian package, for a library of which Debian has no static archive.

It is fetched only if a target needs it, from the mirror that apt uses, once: it
stays in ~/.cache/maypole/sources.
"""

def _impl(ctx):
    version = ctx.execute(["dpkg-query", "-W", "-f", "${source:Upstream-Version}", ctx.attr.package])
    if version.return_code:
        fail("%s is missing: run deploy/setup.sh" % ctx.attr.package)
    sha256 = ctx.attr.sha256.get(version.stdout)
    if not sha256:
        fail("no hash of the source of %s %s is known" % (ctx.attr.package, version.stdout))
    archive = "%s_%s.orig.tar.gz" % (ctx.attr.source, version.stdout)
    fetched = ctx.execute([ctx.path(ctx.attr._fetch), ctx.attr.package, archive, sha256])
    if fetched.return_code:
        fail(fetched.stderr)
    ctx.download_and_extract(
        url = "file://" + fetched.stdout.strip(),
        sha256 = sha256,
        stripPrefix = "%s-%s" % (ctx.attr.source, version.stdout),
        type = "tar.gz",
    )

    # Upstream's own packages of Bazel.
    for path in ctx.attr.delete:
        ctx.delete(path)
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")

debian_source = repository_rule(
    implementation = _impl,
    attrs = {
        "build_file": attr.label(mandatory = True, allow_single_file = True),
        "delete": attr.string_list(doc = "files of the archive that are not to be there"),
        "package": attr.string(mandatory = True, doc = "a binary package of the source, which deploy/setup.sh installs"),
        "sha256": attr.string_dict(mandatory = True, doc = "upstream's version: hash of the .orig.tar.gz"),
        "source": attr.string(mandatory = True, doc = "name of the source package"),
        "_fetch": attr.label(default = ":fetch_source.sh", allow_single_file = True),
    },
)
