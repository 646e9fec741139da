"""precompiled_header: makes a header that includes others, for files that are compiled with -include of it.

Beside it is what gcc makes of it, HEADER.gch. gcc reads that, or the header if it
was compiled with other options: so a mistake here costs time only.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _impl(ctx):
    header = ctx.actions.declare_file(ctx.attr.header)
    ctx.actions.write(header, "".join(["#include <%s>\n" % name for name in ctx.attr.includes]))
    toolchain = find_cpp_toolchain(ctx)
    if "clang" in toolchain.compiler_executable:  # cannot read gcc's
        return [DefaultInfo(files = depset([header]))]
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    context = ctx.attr.library[CcInfo].compilation_context
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
        "library": attr.label(providers = [CcInfo], doc = "has what is included"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
