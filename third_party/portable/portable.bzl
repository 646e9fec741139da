"""portable_runtime: what a program links with to run on older systems than this one."""

def _impl(ctx):
    files = list(ctx.files.libraries)
    for target, name in ctx.attr.archives.items():
        archives = [
            library.pic_static_library or library.static_library
            for linker_input in target[CcInfo].linking_context.linker_inputs.to_list()
            if linker_input.owner == target.label
            for library in linker_input.libraries
        ]
        link = ctx.actions.declare_file("%s/lib%s.a" % (ctx.attr.directory, name))
        ctx.actions.symlink(output = link, target_file = archives[0])
        files += [link, archives[0]]
    linker_input = cc_common.create_linker_input(
        owner = ctx.label,
        user_link_flags = depset([
            "-L%s/%s/%s" % (ctx.bin_dir.path, ctx.label.package, ctx.attr.directory),
            "-static-libgcc",
            "-Wl,--wrap=__libc_start_main",
            "-Wl,--push-state,--no-as-needed,-lpthread,-ldl,-lrt,--pop-state",
        ]),
        additional_inputs = depset(files),
    )
    return [
        DefaultInfo(files = depset(files)),
        CcInfo(linking_context = cc_common.create_linking_context(linker_inputs = depset([linker_input]))),
    ]

portable_runtime = rule(
    doc = """A dependency of a cc_binary: the linker then finds the libraries here before those of the system.

    A system's libpthread, libdl and librt are needed by name: before glibc 2.34,
    they have what is now in libc.
    """,
    implementation = _impl,
    attrs = {
        "archives": attr.label_keyed_string_dict(
            providers = [CcInfo],
            doc = "cc_library: X, if it is to be found as libX.a",
        ),
        "directory": attr.string(doc = "the directory of all libraries"),
        "libraries": attr.label_list(allow_files = True),
    },
)
