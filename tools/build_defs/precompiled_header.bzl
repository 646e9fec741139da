"""precompiled_header: makes a header that includes others, for files that are compiled with -include of it.

Beside it is what gcc makes of it, HEADER.gch. gcc reads that, or the header if it
was compiled with other options: so a mistake here costs time only. clang cannot
read it and gets an empty header: what a file does not include itself is found by
the fuzzers' build.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _impl(ctx):
    header = ctx.actions.declare_file(ctx.attr.header)
    toolchain = find_cpp_toolchain(ctx)
    clang = "clang" in toolchain.compiler_executable
    ctx.actions.write(header, "" if clang else "".join(["#include <%s>\n" % name for name in ctx.attr.includes]))
    if clang:
        return [DefaultInfo(files = depset([header]))]
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    context = cc_common.merge_cc_infos(cc_infos = [l[CcInfo] for l in ctx.attr.libraries]).compilation_context
    out = ctx.actions.declare_file(ctx.attr.header + ".gch")
    variables = cc_common.create_compile_variables(
        cc_toolchain = toolchain,
        feature_configuration = features,
        output_file = out.path,
        source_file = header.path,
        system_include_directories = context.system_includes,
        use_pic = True,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"],
    )
    ctx.actions.run(
        arguments = cc_common.get_memory_inefficient_command_line(
            action_name = "c++-compile",
            feature_configuration = features,
            variables = variables,
        ),
        executable = toolchain.compiler_executable,
        inputs = depset([header], transitive = [context.headers, toolchain.all_files]),
        mnemonic = "CppPrecompile",
        outputs = [out],
        progress_message = "Precompiling " + header.short_path,
    )
    return [DefaultInfo(files = depset([header, out]))]

precompiled_header = rule(
    implementation = _impl,
    attrs = {
        "copts": attr.string_list(doc = "as the files are compiled, beside the options of the configuration"),
        "header": attr.string(mandatory = True),
        "includes": attr.string_list(mandatory = True),
        "libraries": attr.label_list(providers = [CcInfo], doc = "have what is included"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
