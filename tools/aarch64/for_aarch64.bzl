"""for_aarch64: a program of this build, compiled as with --config=aarch64."""

def _on_impl(_settings, _attr):
    return {
        "//command_line_option:cpu": "aarch64",
        "//command_line_option:crosstool_top": "//tools/aarch64:toolchains",
        "//command_line_option:extra_toolchains": ["//tools/aarch64:toolchain"],
        "//command_line_option:platforms": ["//tools/aarch64:platform"],
    }

_on = transition(
    implementation = _on_impl,
    inputs = [],
    outputs = [
        "//command_line_option:cpu",
        "//command_line_option:crosstool_top",
        "//command_line_option:extra_toolchains",
        "//command_line_option:platforms",
    ],
)

def _impl(ctx):
    program = ctx.attr.program[0][DefaultInfo].files_to_run.executable

    # No link: among the files of a test, `program` is the one for this machine.
    copy = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.run_shell(
        command = 'cp "$1" "$2"',
        arguments = [program.path, copy.path],
        inputs = [program],
        outputs = [copy],
        mnemonic = "CopyProgram",
    )
    return [DefaultInfo(executable = copy)]

for_aarch64 = rule(
    doc = "qemu-aarch64-static -L /usr/aarch64-linux-gnu runs it.",
    implementation = _impl,
    attrs = {
        "program": attr.label(cfg = _on, executable = True, mandatory = True),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
    executable = True,
)
